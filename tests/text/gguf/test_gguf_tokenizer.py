"""Tokens of GGUF files are those of the models' own tokenizers."""

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from gguf import Keys
from transformers import PreTrainedTokenizerBase

from pagedrun.paged.files.gguf import GgufFile
from pagedrun.paged.files.gguf_vocabulary import GgufVocabulary
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError
from tests.support.gguf_vocabularies import NAMES, vocabulary, write_vocabulary


def tokenizer(path: Path, name: str, **changes: Any) -> Tokenizer:
    """Return the tokenizer of a cut vocabulary with some fields changed, without those of None."""
    read = vocabulary(name)
    fields = {key: each for key, each in (read["fields"] | changes).items() if each is not None}
    return Tokenizer.from_folder(write_vocabulary(path, fields, read["general.name"]))


@pytest.mark.parametrize("name", NAMES)
def test_texts_have_the_ids_of_the_origin(name: str, tmp_path: Path) -> None:
    found = tokenizer(tmp_path / "vocabulary.gguf", name)
    cases = vocabulary(name)["cases"]
    texts, ids = [text for text, _ in cases], [each for _, each in cases]
    assert found.encode_batch(texts, False) == ids
    if name != "bert-bge":  # it lowers and splits
        assert [found.decode(each, False) for each in ids] == texts


def test_the_vocabularies_of_all_kinds_are_there() -> None:
    assert {vocabulary(name)["fields"]["model"] for name in NAMES} == {
        "gpt2",
        "gemma4",
        "llama",
        "bert",
    }


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gpt-2", {}, []),  # llama.cpp's defaults by tokenizer.ggml.model and pre
        ("gpt-2", {"add_bos_token": True}, ["bos"]),
        ("gpt-2", {"add_eos_token": True}, ["eos"]),
        ("llama-bpe", {}, ["bos"]),
        ("llama-bpe", {"add_bos_token": False}, []),
        ("llama-spm", {"add_bos_token": None}, ["bos"]),
        ("llama-spm", {"add_bos_token": False}, []),
        ("llama-spm", {"add_eos_token": True}, ["bos", "eos"]),
        ("gemma-4", {"add_bos_token": False}, ["bos"]),  # early files of Gemma 4 are wrong
        ("bert-bge", {}, ["cls", "seperator"]),
    ],
)
def test_special_tokens_surround_a_prompt(
    name: str, changes: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    found = tokenizer(tmp_path / "vocabulary.gguf", name, **changes)
    fields = vocabulary(name)["fields"]
    plain, whole = found.encode_batch([" a", ""], False)[0], found.encode_batch([" a"], True)[0]
    ids = [fields[f"{each}_token_id"] for each in expected]
    cut = 1 if expected and expected[0] in ("bos", "cls") else 0
    assert whole == [*ids[:cut], *plain, *ids[cut:]]


def test_a_space_precedes_the_text_after_a_special_token(tmp_path: Path) -> None:
    """The ids are those of Llama 2's tokenizer.json: ▁a after <s>, and a space within the text."""
    found = tokenizer(tmp_path / "vocabulary.gguf", "llama-spm")
    tokens = vocabulary("llama-spm")["fields"]["tokens"]
    assert "▁Hello" in tokens
    [ids] = found.encode_batch(["Hello<s>Hello"], False)
    assert [tokens[each] for each in ids] == ["▁Hello", "<s>", "▁Hello"]
    assert found.decode(ids) == "Hello Hello"
    plain = tokenizer(tmp_path / "other.gguf", "llama-spm", add_space_prefix=False)
    [ids] = plain.encode_batch(["Hello<s> Hello"], False)
    assert tokens[ids[-1]] == "▁Hello"
    assert tokens[ids[0]] != "▁Hello"
    assert plain.decode(plain.encode_batch([" Hello"], False)[0]) == " Hello"


def test_phi_3_drops_spaces_after_special_tokens(tmp_path: Path) -> None:
    """As in Phi-3's tokenizer.json (rstrip), by the model's name as in llama.cpp."""
    fields = vocabulary("phi-3")["fields"]
    number = len(fields["tokens"])
    more = {
        "tokens": [*fields["tokens"], "<|user|>"],
        "token_type": [*fields["token_type"], 3],
        "scores": [*fields["scores"], -1000.0],
    }
    found = tokenizer(tmp_path / "vocabulary.gguf", "phi-3", **more)
    assert found.encode_batch(["<|user|> \n Hello"], False) == [
        [number, *found.encode_batch(["Hello"], False)[0]]
    ]


def end_ids(path: Path, tokens: list[str], **fields: int) -> list[int]:
    write_vocabulary(path, {"model": "gpt2", "tokens": tokens, **fields})
    return GgufVocabulary(GgufFile.open(path)).end_ids


def test_answers_end_at_all_tokens_that_end_turns(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    llama = ["a", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
    assert end_ids(path, llama, eos_token_id=3) == [3, 1, 2]
    assert end_ids(path, ["a", "<end_of_turn>", "b"], eos_token_id=2, eot_token_id=0) == [2, 0, 1]
    # <|end|> ends an answer of Phi-3, and a message of gpt-oss, whose answers have several.
    assert end_ids(path, ["a", "<|end|>"], eos_token_id=0) == [0, 1]
    for ends in (["<|return|>", "<|call|>"], ["<|flush|>", "<|call|>"], ["<|flush|>", "<|calls|>"]):
        assert end_ids(path, ["<|end|>", *ends], eos_token_id=1) == [1, 2]
    for field in ("eot_token_id", "eom_token_id"):
        assert end_ids(path, ["a", "b"], **{field: 1}) == [1]


# Of llama-vocab.cpp, b11192, which has </s> too.
ENDS_OF_LLAMA_CPP = """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|>
    <end_of_turn> <|endoftext|> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|>
    <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["""


@pytest.mark.parametrize("text", ENDS_OF_LLAMA_CPP.split())
def test_tokens_that_end_answers_are_known_by_their_texts(text: str, tmp_path: Path) -> None:
    assert end_ids(tmp_path / "vocabulary.gguf", ["a", text]) == [1]


def test_special_tokens_have_the_names_of_transformers(tmp_path: Path) -> None:
    """The fields are those that the origin's package writes."""
    keys = Keys.Tokenizer
    fields = {
        "bos_token": keys.BOS_ID,
        "eos_token": keys.EOS_ID,
        "unk_token": keys.UNK_ID,
        "sep_token": keys.SEP_ID,
        "pad_token": keys.PAD_ID,
        "cls_token": "tokenizer.ggml.cls_token_id",  # of older files
        "mask_token": keys.MASK_ID,
    }
    assert set(fields) <= set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    texts = [f"[{name}]" for name in fields]
    ids = {field.rsplit(".", 1)[1]: number for number, field in enumerate(fields.values())}
    path = tmp_path / "vocabulary.gguf"
    write_vocabulary(path, {"model": "gpt2", "tokens": texts, **ids})
    found = GgufVocabulary(GgufFile.open(path)).special_tokens
    assert found == dict(zip(fields, texts, strict=True))


def test_unigrams_are_those_of_transformers(tmp_path: Path) -> None:
    """A small model as XLM-R's and T5's: the expected ids are those of the library's pipeline."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [("▁the", -3.0), ("▁cat", -4.0), ("s", -2.5), ("▁th", -4.5), ("e", -2.1), ("c", -3.0)]
    pieces += [("a", -2.2), ("t", -2.3)]
    library = Library(models.Unigram(pieces, 3, False))
    library.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    texts = ["the cats", "  the   cat ", "tea", "thé cat", "", "x"]
    path = write_vocabulary(
        tmp_path / "vocabulary.gguf",
        {
            "model": "t5",
            "pre": "default",
            "tokens": [text for text, _ in pieces],
            "scores": [score for _, score in pieces],
            "token_type": [3, 3, 3, 2] + [1] * (len(pieces) - 4),
            "add_space_prefix": True,
            "remove_extra_whitespaces": True,
            "unknown_token_id": 3,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "add_bos_token": True,
        },
    )
    found = Tokenizer.from_folder(path)
    expected = [library.encode(text).ids for text in texts]
    assert found.encode_batch(texts, False) == expected
    assert found.encode_batch(texts, True) == [[0, *ids, 2] for ids in expected]
    assert found.decode(expected[0]) == "the cats"


ARCHIVE = "llama_cpp_python==0.3.36"


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of llama.cpp's vocabularies, from the package index."""
    folder = tmp_path_factory.mktemp("archive")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(folder),
    ]
    done = subprocess.run([*command, "--no-binary", "llama_cpp_python", ARCHIVE], timeout=900)
    if done.returncode:
        pytest.skip(f"pip cannot download {ARCHIVE} here")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        names = [each for each in packed.getmembers() if "/models/ggml-vocab-" in each.name]
        packed.extractall(folder, names, filter="data")
    return next(folder.rglob("ggml-vocab-gpt-2.gguf")).parent


@pytest.mark.long
def test_all_vocabularies_of_llama_cpp(archive: Path) -> None:
    refused, tested = {}, []
    for path in sorted(archive.glob("*.gguf")):
        try:
            found = Tokenizer.from_folder(path)
        except ModelError as error:
            refused[path.stem.removeprefix("ggml-vocab-")] = str(error)
            continue
        expected = path.with_name(f"{path.name}.out")
        if expected.exists():
            ids = [[int(each) for each in line.split()] for line in expected.open()]
            stored = path.with_name(f"{path.name}.inp").read_bytes().decode()
            texts = stored.split("\n__ggml_vocab_test__\n")[: len(ids)]
            assert found.encode_batch(texts, False) == ids, path.name
            tested.append(path.stem.removeprefix("ggml-vocab-"))
    assert tested == NAMES
    # Older than the field.
    assert all("tokenizer.ggml.pre is missing" in why for why in refused.values())
    assert sorted(refused) == ["aquila", "gpt-neox"]
