"""A tokenizer.json that multiplies texts, or searches them for hours, is refused at load."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError, RowError

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1, "<s>": 2}, "unk_token": "<unk>"}


def replace(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def by_regex(regex: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": content}


def normalizers(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


def splits(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)}}


def decoders(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"decoder": {"type": "Sequence", "decoders": list(steps)}}


def template(pieces: list[str], ids: list[int]) -> dict[str, Any]:
    every = [
        {"Sequence": {"id": each, "type_id": 0}}
        if each in "AB"
        else {"SpecialToken": {"id": each, "type_id": 0}}
        for each in pieces
    ]
    token = {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}
    pair = [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"]
    processor = {"type": "TemplateProcessing", "single": every, "pair": pair}
    return {"post_processor": {**processor, "special_tokens": {"<s>": token}}}


def character_map(replacement: str) -> dict[str, Any]:
    """Return SentencePiece's map of characters with an empty trie and one replacement."""
    trie = struct.pack("<256I", *[0] * 256)
    stored = struct.pack("<I", len(trie)) + trie + replacement.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(stored).decode()}


def loaded(folder: Path, parts: dict[str, Any]) -> Tokenizer:
    empty = dict.fromkeys(["normalizer", "pre_tokenizer", "post_processor", "decoder"])
    fields = {"version": "1.0", "added_tokens": [], "model": WORDS, **empty, **parts}
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    return Tokenizer.from_folder(folder)


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT |= {"strip_accents": None, "lowercase": True}
FADDA = "صلى الله عليه وسلم"  # what NFKC makes of U+FDFA, the longest of all
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * 10**6, -1.0]]}
PIECES: dict[str, Any] = {"type": "WordPiece", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
PIECES |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9}


PAIRS = {"type": "BPE", "merges": [["a", "b"]], "unk_token": "<unk>"}
STRIDE = {"direction": "Right", "strategy": "LongestFirst", "max_length": 8, "stride": 9}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"truncation": STRIDE}, "is not a tokenizer"),
        # Two tokens with one id: the library writes one of them, by chance, and fails as it reads
        # that: the merge has both.
        (
            {"model": {**PAIRS, "vocab": {"a": 2, "b": 2, "<unk>": 0, "ab": 6}}},
            "is not a tokenizer",
        ),
        ({"model": {**WORDS, "vocab": {}}}, "has no tokens"),
        (normalizers(*[replace("a", "aa")] * 40), "normalizer can make"),
        ({"normalizer": replace("a", "a" * 10**6)}, "normalizer can make"),
        (normalizers(*[replace("a", "bb"), replace("b", "aa")] * 20), "normalizer can make"),
        (normalizers(*[by_regex("a?", "aa")] * 6), "normalizer can make"),
        (normalizers(*[replace("ص", "ﷺ"), {"type": "NFKD"}] * 9), "normalizer can make"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**7}}, "Prepend"),
        (normalizers(*[{"type": "Prepend", "prepend": "a" * 60}] * 2), "Prepend"),
        (normalizers(*[{"type": "Lowercase"}] * 10**4), "10,000 steps"),
        ({"normalizer": character_map("a" * 10**5)}, "normalizer can make"),
        (splits(*[BYTES] * 40), "normalizer can make"),
        (splits(*[METASPACE] * 40), "normalizer can make"),
        (decoders(*[replace("a", "aa")] * 40), "decoder can make"),
        (decoders(by_regex("(a+)+$", "b")), "decoder has a regular expression"),
        (template(["A"] * 100, [2]), "repeats a text"),
        (template(["<s>", "A"], [2] * 10**5), "adds more than"),
        # The library panics: at the first text, and where an answer has no text yet.
        (template(["<s", "A"], [2]), "adds '<s' in its template single, and says no id of it"),
        (
            decoders({"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}),
            "decoder strips the end of a text",
        ),
        ({"model": PIECES}, "words of 1,000,000,000 characters"),
        ({"model": UNIGRAM}, "token of 1,000,000"),
        # A list of the ids below it would have gigabytes.
        ({"model": {**WORDS, "vocab": {"<unk>": 0, "a": 2**31}}}, "the id 2,147,483,648"),
    ],
)
def test_growth_is_refused_by_file_and_piece(
    parts: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        loaded(tmp_path, parts)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


# As published for the models named, with the longest replacement of SentencePiece's nmt_nfkc.
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"normalizer": BERT}, id="bert"),
        pytest.param(
            normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))
            | decoders(
                replace("▁", " "),
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ),
            id="llama-2",
        ),
        pytest.param({"normalizer": replace(" ", "▁")} | decoders(replace("▁", " ")), id="gemma"),
        pytest.param({"normalizer": {"type": "NFC"}} | splits(BYTES), id="qwen2"),
        pytest.param({"normalizer": {"type": "NFKC"}} | splits(BYTES), id="gpt-neox-japanese"),
        pytest.param(
            normalizers({"type": "NFC"}, by_regex(r"\s+", " "), {"type": "Lowercase"})
            | splits(BYTES),
            id="clip",
        ),
        pytest.param(
            normalizers(
                character_map(FADDA),
                {"type": "Strip", "strip_left": False, "strip_right": True},
                by_regex(" {2,}", "▁"),
            )
            | splits(METASPACE),
            id="t5",
        ),
        pytest.param(
            normalizers(character_map(FADDA), by_regex(" {2,}", " "))
            | splits({"type": "WhitespaceSplit"}, METASPACE),
            id="xlm-roberta",
        ),
        pytest.param(
            normalizers(
                replace("``", '"'),
                replace("''", '"'),
                {"type": "NFKD"},
                {"type": "StripAccents"},
                {"type": "Lowercase"},
                character_map(FADDA),
                by_regex(" {2,}", " "),
            )
            | splits(METASPACE),
            id="albert",
        ),
        pytest.param(
            normalizers(replace(" ", "▂"), replace("\n", "▃"), replace("\t", "▄▄")), id="cpm"
        ),
        pytest.param(template(["<s>", "A"], [2]), id="llama-3"),
    ],
)
def test_the_layouts_of_published_tokenizers_are_read(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    assert loaded(tmp_path, parts).encode_batch(["a"], True)


def test_a_regular_expression_that_never_ends_is_the_rows_error(tmp_path: Path) -> None:
    """The library gives up after ten million steps from one character."""
    pattern = {"Regex": "(a+)+$"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    found = loaded(tmp_path, {"pre_tokenizer": split})
    with pytest.raises(RowError, match="retry-limit") as caught:
        found.encode_batch(["a" * 40 + "b"], True)
    assert caught.value.code == "tokenizer_error"
    assert found.encode_batch(["aaa"], True)
