"""Texts that are cut: the tokens, and the number of those that were cut, of a second encoding."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit

from pagedrun.paged.execution.pooling.pairs import Given
from pagedrun.paged.execution.pooling.texts import PooledTextEncoder, TextLimits
from pagedrun.paged.models.sentence_folder import PairForm, SentenceFolder
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.text.prompt_encoder import EncodedPrompt, check_length
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError, RowError
from tests.support.tiny_encoders import write_tokenizer

WORDS = " ".join(f"w{number % 50}" for number in range(40))
SPECIAL = 2  # [CLS] and [SEP] of a text; a pair has one more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("tokenizer"))
    write_tokenizer(folder, is_encoder=True)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def encode(
    tokenizer: Tokenizer,
    given: Given,
    limit: int,
    mode: Overlong,
    *,
    in_chunks: bool = False,
    saved: SentenceFolder | None = None,
) -> EncodedPrompt:
    """Return a row of one text."""
    embedding = SimpleNamespace(types=SimpleNamespace(shape=(2, 8)))
    config: Any = SimpleNamespace(network=SimpleNamespace(embedding=embedding), vocab_size=1000)
    pooler = SimpleNamespace(with_prompt=True)
    saved = saved or SentenceFolder()
    spec: Any = SimpleNamespace(config=config, saved=saved, pooler=pooler, prompt="", folder="")
    limits = TextLimits(limit, 1000, mode, in_chunks)
    [row] = PooledTextEncoder(tokenizer, spec, limits).requests([0], [[given]])
    return row


def ids_of(row: EncodedPrompt) -> list[tuple[int, ...]]:
    assert row.request is not None
    return [tuple(each.token_ids) for each in row.request.texts]


@pytest.mark.parametrize("limit", [4, 7, 41, 42, 100])
def test_a_text_is_cut_at_either_end(tokenizer: Tokenizer, limit: int) -> None:
    [whole] = tokenizer.encode_batch([WORDS], True)
    words, kept = whole[1:-1], limit - SPECIAL
    right = encode(tokenizer, WORDS, limit, Overlong.TRUNCATE_RIGHT)
    left = encode(tokenizer, WORDS, limit, Overlong.TRUNCATE_LEFT)
    assert ids_of(right) == [(whole[0], *words[:kept], whole[-1])]
    assert ids_of(left) == [(whole[0], *words[-kept:], whole[-1])]
    assert right.num_truncated_tokens == left.num_truncated_tokens == max(0, len(words) - kept)


@pytest.mark.parametrize("origin", ["tokenizer_config.json", "tokenizer.json", "neither"])
def test_an_error_names_the_side_on_which_transformers_cuts(
    folder: Path, tmp_path: Path, origin: str
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    path = tmp_path / "model" / origin
    settings = {
        "tokenizer_config.json": {"truncation_side": "left"},
        "tokenizer.json": {
            "truncation": {"direction": "Left", "max_length": 8, "strategy": "LongestFirst"}
            | {"stride": 0}
        },
    }.get(origin, {})
    if settings:
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    tokenizer = Tokenizer.from_folder(tmp_path / "model")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    for given in (WORDS, ("w1 w2", WORDS)):
        error = encode(tokenizer, given, 9, Overlong.ERROR).error
        assert error is not None
        named = next(mode for mode in Overlong if f" {mode} cuts it" in error.message)
        texts = (given,) if isinstance(given, str) else given
        kept = theirs(*texts, truncation="longest_first", max_length=9)["input_ids"]
        assert ids_of(encode(tokenizer, given, 9, named)) == [tuple(kept)]
        assert named == ("truncate-right" if origin == "neither" else "truncate-left")


def test_a_side_that_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation_side": "middle"}))
    with pytest.raises(
        ModelError, match=r'config.json: truncation_side is .* it must be "left" or "right"$'
    ):
        Tokenizer.from_folder(tmp_path / "model")


def test_of_a_pair_the_longer_text_is_cut(tokenizer: Tokenizer) -> None:
    row = encode(tokenizer, ("w1 w2", WORDS), 12, Overlong.TRUNCATE_RIGHT)
    [ids] = ids_of(row)
    [whole] = tokenizer.encode_pairs([("w1 w2", WORDS)], add_special_tokens=True)
    assert ids == (*whole.ids[:11], whole.ids[-1])
    assert row.num_truncated_tokens == len(whole.ids) - 12


def test_chunks_have_all_words_once(tokenizer: Tokenizer) -> None:
    [whole] = tokenizer.encode_batch([WORDS], True)
    row = encode(tokenizer, WORDS, 9, Overlong.ERROR, in_chunks=True)
    chunks = ids_of(row)
    assert [len(each) for each in chunks] == [9] * 5 + [7]
    assert [token for each in chunks for token in each[1:-1]] == whole[1:-1]
    assert row.num_truncated_tokens == 0


@pytest.mark.parametrize("limit", [1, 7, 40])
def test_token_ids_are_cut_at_either_end(tokenizer: Tokenizer, limit: int) -> None:
    ids = tuple(range(5, 35))
    right = encode(tokenizer, ids, limit, Overlong.TRUNCATE_RIGHT)
    left = encode(tokenizer, ids, limit, Overlong.TRUNCATE_LEFT)
    assert (ids_of(right), ids_of(left)) == ([ids[:limit]], [ids[-limit:]])
    assert right.num_truncated_tokens == left.num_truncated_tokens == max(0, 30 - limit)


def test_a_pair_in_a_template_keeps_what_stands_behind_its_texts(tmp_path: Path) -> None:
    words = {word: n for n, word in enumerate(("unknown", *"abcdefgh01234", "ask", "of", "end"))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="unknown"))
    backend.pre_tokenizer = WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    fast.chat_template = "ask {{ messages[0].content }} of {{ messages[1].content }} end of ask"
    fast.save_pretrained(tmp_path)
    own = Tokenizer.from_folder(tmp_path)
    saved = SentenceFolder(pairs=PairForm.TEMPLATE)
    for limit, kept in ((20, "ask a b of c d e f g end of ask"), (9, "ask a b of c d end of ask")):
        row = encode(own, ("a b", "c d e f g"), limit, Overlong.TRUNCATE_RIGHT, saved=saved)
        assert ids_of(row) == [tuple(words[word] for word in kept.split())]
        assert row.num_truncated_tokens == max(0, 12 - limit)
    row = encode(own, ("a b", "c d e f g"), 3, Overlong.TRUNCATE_RIGHT, saved=saved)
    assert isinstance(row.result, RowError)
    assert "leaves no room" in str(row.result)


def test_an_error_names_the_whole_length(tokenizer: Tokenizer) -> None:
    row = encode(tokenizer, WORDS, 9, Overlong.ERROR)
    assert isinstance(row.result, RowError)
    assert "42 tokens, but the limit is 9" in str(row.result)


def test_a_limit_without_room_for_a_text_is_an_error_row(tokenizer: Tokenizer) -> None:
    row = encode(tokenizer, WORDS, 3, Overlong.TRUNCATE_RIGHT)
    assert isinstance(row.result, RowError)
    assert "a limit of 3 tokens leaves no room" in str(row.result)


SPARSE = {
    "spaces": "w1" + " " * 90_000 + "w2 w3",
    "unknown word": "w1 " + "é" * 90_000 + " w2 w3",
    "spaces within": " ".join(["w1", " " * 80_000, *["w2"] * 12]),
    "spaces at the end": WORDS + " " * 90_000,
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("limit", [8, 256])
def test_long_texts_with_few_tokens_are_cut_as_by_transformers(
    tokenizer: Tokenizer, folder: Path, name: str, limit: int
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text, whole = SPARSE[name], theirs(SPARSE[name])["input_ids"]
    for side, mode in (("right", Overlong.TRUNCATE_RIGHT), ("left", Overlong.TRUNCATE_LEFT)):
        theirs.truncation_side = side
        kept = theirs(text, truncation=True, max_length=limit)["input_ids"]
        row = encode(tokenizer, text, limit, mode)
        assert ids_of(row) == [tuple(kept)]
        assert row.num_truncated_tokens == len(whole) - len(kept)
    row = encode(tokenizer, text, limit, Overlong.ERROR)
    assert isinstance(row.result, RowError) == (len(whole) > limit)


def test_of_a_text_far_too_long_a_beginning_is_encoded(tokenizer: Tokenizer) -> None:
    text = "w1 " * 400_000
    lengths: list[int] = []

    class Spy:
        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
            lengths.extend(map(len, texts))
            return tokenizer.encode_batch(texts, add_special_tokens)

    with pytest.raises(RowError, match=r"1,200,000 characters, of which the first 16,384 have"):
        check_length(text, "the text", 256, Spy(), param="text")  # type: ignore[arg-type]
    assert lengths == [2**14]
    with pytest.raises(RowError, match=r"more than the 33,554,432"):
        check_length("x" * (2**25 + 1), "the text", 256, Spy(), param="text", cuts=True)  # type: ignore[arg-type]
    assert len(lengths) == 1


def test_words_that_are_cut_between_pieces_refuse_no_text() -> None:
    """Each word is one unknown token, but its halves have a hundred tokens each."""
    word = "a" * 150
    backend = tokenizers.Tokenizer(WordPiece({"[UNK]": 0, "a": 1, "##a": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    check_length(f"{word} " * 2_000, "the text", 1_000, Tokenizer(fast, None), param="text")
