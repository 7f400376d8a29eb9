"""Limits of tokenizer.json: what its pieces can make of a text is bounded before any text.

A folder is a stranger's, and a Rust library that runs out of memory ends the process, all rows of
it. So files are refused whose pieces can multiply a text, or search it for hours.

Bounds are numbers of UTF-8 bytes made of one. They hold for texts of any characters but one: forms
of Unicode make 33 bytes of U+FDFA's 3, and nothing more of the result.
"""

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pagedrun.paged.values.errors import ModelError

# The files of published models reach 176: T5's character map, ▁ for spaces twice.
_MAX_GROWTH = 256
_MAX_OWN_GROWTH = 64  # without the forms of Unicode; published models reach 16
_MAX_PREPENDED = 64  # bytes, before each text between special tokens; published models have ▁
_MAX_STEPS = 256
_MAX_ADDED = 4096  # special tokens around a text
MAX_ID = 2**24  # the largest vocabularies have 10^6 tokens
_MAX_UNIGRAM = 4096  # characters of a token: a search from each character of a text
# A list under "vocab"; or a letter written by its number, which could hide the name.
_HAS_LIST = re.compile(rb'"vocab"\s*:\s*\[|\\u00[2-7]')
_MAX_WORD = 512  # characters of a word of WordPiece, whose search takes their third power
# Growth of a character by the forms of Unicode: at most 11 in UTF-8 for the compatible ones, 3 for
# the others (https://unicode.org/faq/normalization.html). A form changes its own result no more.
_FORMS = {"NFKC": 11, "NFKD": 11, "NFC": 3, "NFD": 3, "BertNormalizer": 3, "Lowercase": 2}
# Bytes of a character that the maps of SentencePiece replace by many, and of those; in a map with
# longer ones any character may be the one.
_SHORTEST_MAPPED, _LONGEST_MAPPED = 3, 36
_BYTE_LEVEL, _METASPACE = 2, 4  # ▁ is 3 bytes, and another may be 4
_PARTS = ("normalizer", "pre_tokenizer", "decoder")

Step = Mapping[str, Any]


def refuse_growth(backend: Any, path: Path) -> None:
    """Raise `ModelError` that names the piece of `path`'s tokenizer that grows texts, or searches.

    Ids beyond all vocabularies are refused, too, and pieces that panic. `backend` is a
    `tokenizers.Tokenizer`, read from `path`.
    """
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=None)
    if largest is None:
        raise _refused(path, "model", "has no tokens")
    if largest > MAX_ID:  # the library makes a list of all ids that are missing below
        raise _refused(path, "model", f"has a token with the id {largest:,}")
    steps = {part: list(_steps(_state(getattr(backend, part)))) for part in _PARTS}
    for part, each in steps.items():
        if len(each) > _MAX_STEPS:
            raise _refused(path, part, f"has {len(each):,} steps")
    _refuse_product(path, "normalizer", [*steps["normalizer"], *steps["pre_tokenizer"]])
    _refuse_product(path, "decoder", steps["decoder"])
    if any("Regex" in _pattern(step) for step in steps["decoder"]):
        raise _refused(path, "decoder", "has a regular expression")
    if any(step["type"] == "Strip" and step["stop"] for step in steps["decoder"]):
        # The library panics where there are fewer characters than it strips there, such as none.
        raise _refused(path, "decoder", "strips the end of a text (stop of Strip)")
    prepended = [step["prepend"] for step in steps["normalizer"] if step["type"] == "Prepend"]
    if sum(len(each.encode()) for each in prepended) > _MAX_PREPENDED:
        raise _refused(path, "normalizer", f"Prepend puts more than {_MAX_PREPENDED} bytes first")
    for step in _steps(_state(backend.post_processor)):
        _refuse_template(path, step)
    _refuse_search(path, backend)


def refuse_long_pieces(path: Path) -> None:
    """Raise `ModelError` if the tokenizer.json at `path` has unigrams with a token too long.

    The library keeps them as a tree, which it frees by recursion, a level a byte: a token of 10^6
    characters overflows the stack as soon as the file was read, so this comes before. Only a list
    of tokens can be one of unigrams, and only such a file is parsed: others have a dictionary.
    """
    data = path.read_bytes()
    if not _HAS_LIST.search(data):
        return
    try:
        pieces = json.loads(data)["model"]["vocab"]
        longest = max((len(piece) for piece, _ in pieces), default=0)
    except (ValueError, TypeError, KeyError, RecursionError):
        return  # the library says what is wrong with it
    refuse_long_piece(path, longest)


def refuse_long_piece(path: Path, longest: int) -> None:
    """Raise `ModelError` if the longest unigram, in characters, is too long."""
    if longest > _MAX_UNIGRAM:
        raise _refused(path, "model", f"has a token of {longest:,} characters")


def _refused(path: Path, part: str, why: str) -> ModelError:
    return ModelError(
        f"{path}: {part} {why}, which no published tokenizer needs and a row could not survive; "
        "download it again, from the model's authors"
    )


def _state(piece: Any) -> Any:
    """Return a piece of a tokenizer as tokenizer.json has it, None if there is none."""
    return None if piece is None else json.loads(piece.__getstate__())


def _steps(state: Any) -> Iterator[Step]:
    """Yield the steps of a piece in their order, those of nested sequences too."""
    if isinstance(state, dict) and state.get("type") == "Sequence":
        names = ("normalizers", "pretokenizers", "decoders", "processors")
        for nested in next((state[name] for name in names if name in state), []):
            yield from _steps(nested)
    elif isinstance(state, dict):
        yield state


def _pattern(step: Step) -> Mapping[str, str]:
    """Return what a step replaces: a text under String, or an expression under Regex."""
    pattern = step.get("pattern") if step["type"] == "Replace" else None
    return pattern if isinstance(pattern, dict) else {}


def _refuse_product(path: Path, part: str, steps: Sequence[Step]) -> None:
    """Raise `ModelError` if a character can become more than `_MAX_GROWTH` in these steps.

    A text in place of another grows the result of an earlier step only if that text shares
    characters with what the step puts in. Forms of Unicode in a row are one step, which may put in
    any character.
    """
    growth, in_forms, of_forms, puts_in_any, put_in = 1.0, 1.0, 1.0, False, set[str]()
    for step in steps:
        of_step, kind = 1.0, step["type"]
        form = _form_growth(step)
        if form > 1:
            growth *= max(1.0, form / in_forms)
            of_forms *= max(1.0, form / in_forms)
            in_forms, puts_in_any = max(in_forms, form), True
        elif kind == "Replace":
            text, content = _pattern(step).get("String"), step["content"]
            size = len(content.encode())
            of_step = 1.0 + size if text is None else size / max(1, len(text.encode()))
            if of_step > 1:
                shares = text is None or puts_in_any or put_in.intersection(text)
                growth = growth * of_step if shares else max(growth, of_step)
                put_in.update(content)
                in_forms = 1.0
        elif kind in ("ByteLevel", "Metaspace") and part != "decoder":
            growth *= _BYTE_LEVEL if kind == "ByteLevel" else _METASPACE
        if growth > _MAX_GROWTH:
            raise _refused(path, part, f"can make more than {_MAX_GROWTH} bytes of one (by {kind})")


def _form_growth(step: Step) -> float:
    """Return the growth by a form of Unicode or a character map, 1 for other steps."""
    if step["type"] != "Precompiled":
        return _FORMS.get(step["type"], 1)
    stored = b64decode(step["precompiled_charsmap"])
    start = 4 + int.from_bytes(stored[:4], "little")  # of the texts, after the trie
    longest = max(map(len, stored[start:].split(b"\0")), default=0)
    return max(1.0, longest / _SHORTEST_MAPPED if longest <= _LONGEST_MAPPED else longest)


def _refuse_template(path: Path, step: Step) -> None:
    """Raise `ModelError` for a template that repeats a text, or adds thousands of tokens or one
    without an id."""
    if step["type"] != "TemplateProcessing":
        return
    sizes = {name: len(token["ids"]) for name, token in step["special_tokens"].items()}
    for name in ("single", "pair"):
        texts = [each["Sequence"]["id"] for each in step[name] if "Sequence" in each]
        if len(texts) != len(set(texts)):
            raise _refused(path, "post_processor", f"repeats a text in its template {name}")
        added = [each["SpecialToken"]["id"] for each in step[name] if "SpecialToken" in each]
        unknown = [each for each in added if each not in sizes]
        if unknown:  # the library panics at the first text
            what = f"adds {ascii(unknown[0])[:80]} in its template {name}, and says no id of it"
            raise _refused(path, "post_processor", what)
        if sum(sizes[each] for each in added) > _MAX_ADDED:
            raise _refused(path, "post_processor", f"adds more than {_MAX_ADDED} tokens to a text")


def _refuse_search(path: Path, backend: Any) -> None:
    """Raise `ModelError` for a model whose search takes hours for a text of a page."""
    model = backend.model
    if type(model).__name__ == "WordPiece" and model.max_input_chars_per_word > _MAX_WORD:
        raise _refused(
            path,
            "model",
            f"takes words of {model.max_input_chars_per_word:,} characters "
            "(max_input_chars_per_word)",
        )
