"""Text decoded as it comes is the text decoded at once, whatever a token cuts in two."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.paged.text.incremental_text import REPLACEMENT, IncrementalText
from pagedrun.paged.text.tokenizer import Tokenizer

WORDS = ["▁", "▁Hello", "▁world", "Hello", ",", "▁▁", "é", "日", "a"]


@cache
def sentencepiece() -> Tokenizer:
    """Return a tokenizer that decodes as Llama's and Mistral's first ones do."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", *(f"<0x{value:02X}>" for value in range(256)), *WORDS]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    backend.add_special_tokens(["<s>"])
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=backend)
    return Tokenizer(fast, None)


def ids_of(*pieces: str | bytes) -> list[int]:
    """Return token ids; of bytes one token each."""
    found: list[int] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            found += [2 + value for value in piece]
        else:
            found.append(258 + WORDS.index(piece))
    return found


def fed(tokenizer: Tokenizer, token_ids: list[int], num_kept: int) -> list[str]:
    """Return what each token gives."""
    text = IncrementalText(tokenizer.decode, num_kept)
    return [text.feed([token_id]) for token_id in token_ids]


SOME_TEXT = st.lists(
    st.one_of(st.sampled_from(WORDS), st.sampled_from([c.encode() for c in "aé日😀本"])),
    max_size=30,
)


@given(SOME_TEXT, st.integers(0, 12))
@settings(deadline=None)
def test_its_end_is_the_end_of_the_whole_sentencepiece(
    pieces: list[str | bytes], num_kept: int
) -> None:
    check_ends(sentencepiece(), ids_of(*pieces), num_kept)


@given(st.text(max_size=30), st.integers(0, 12))
@settings(deadline=None)
def test_its_end_is_the_end_of_the_whole_byte_level(
    make_tokenizer: Callable[..., Path], text: str, num_kept: int
) -> None:
    tokenizer = byte_level(make_tokenizer)
    check_ends(tokenizer, tokenizer.encode_batch([text], False)[0], num_kept)


@cache
def byte_level(make_tokenizer: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.from_folder(make_tokenizer())


def check_ends(tokenizer: Tokenizer, token_ids: list[int], num_kept: int) -> None:
    before = ""
    for count, end in enumerate(fed(tokenizer, token_ids, num_kept), start=1):
        whole = tokenizer.decode(token_ids[:count])
        settled = whole.rstrip(REPLACEMENT)
        assert settled.endswith(end.rstrip(REPLACEMENT))
        new = len(settled) - len(before.rstrip(REPLACEMENT))
        assert len(end) >= min(len(settled), num_kept + max(new, 0))
        before = whole


def test_tokens_may_come_many_at_a_time() -> None:
    token_ids = ids_of("▁Hello", "▁world", ",", "▁Hello", "▁world", ",")
    text = IncrementalText(sentencepiece().decode, 4)
    assert text.feed(token_ids[:3]) == "Hello world,"
    assert text.feed(token_ids[3:]) == "rld, Hello world,"
    assert text.num_tokens == 6


def test_later_bytes_are_read_after_many_tokens_that_end_behind_a_character() -> None:
    """The bytes of a cut character would spoil those behind them."""
    text = IncrementalText(sentencepiece().decode, 1)
    assert text.feed(ids_of("▁Hello", "😀日".encode())) == "Hello😀日"
    assert text.feed(ids_of("é".encode())) == "日é"
    assert text.feed(ids_of("a")) == "éa"


def test_bytes_that_never_make_a_character_are_not_decoded_for_ever() -> None:
    decoded: list[int] = []

    def decode(token_ids: list[int]) -> str:
        decoded.append(len(token_ids))
        return sentencepiece().decode(token_ids)

    text = IncrementalText(decode, 3)
    for token_id in ids_of(b"\x80" * 500):
        text.feed([token_id])
    assert max(decoded) < 40


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_cut_character_costs_none_before_it(num_bytes: int) -> None:
    """Bytes decode together: one that is missing would make all of them unreadable."""
    cut = "😀".encode()[:num_bytes]
    tokenizer = sentencepiece()
    assert tokenizer.decode(ids_of("▁Hello", "日".encode(), cut)) == f"Hello日{REPLACEMENT}"
    assert tokenizer.decode(ids_of("日".encode() * 2)) == "日日"
    assert tokenizer.decode(ids_of(b"a\x80")) == REPLACEMENT * 2  # as transformers: no beginning
