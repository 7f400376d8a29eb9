"""When a sample ends and what its text is, with a tokenizer whose tokens cut text anywhere."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.scheduling.stopping import MAX_CYCLE, StopRule, repeats
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import FinishReason, SampleOutput
from tests.support.made_step import generate, made_sequence

EOS, OTHER_EOS, SPECIAL = 0, 1, 2
PIECES = [b"", b"", b"", b"a", b"b", b"ab", b"ba", b"bb", b" ", b"\n\n", b"END", b"EN", b"D."]
PIECES += [bytes([byte]) for byte in "é😀".encode()]  # one character over two and four tokens
ID_OF = {piece: token_id for token_id, piece in enumerate(PIECES) if piece}


class Pieces:
    """Decodes as a byte-level tokenizer does: bytes joined, special tokens left out or shown."""

    chat_template: str | None = None
    special_ids = frozenset({EOS, OTHER_EOS, SPECIAL})

    def special_ids_in(self, texts: Iterable[str]) -> frozenset[int]:
        return frozenset()

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        shown = (PIECES[each] if each > SPECIAL else f"<{each}>".encode() for each in token_ids)
        hidden = (PIECES[each] for each in token_ids)
        joined = b"".join(hidden if skip_special_tokens else shown)
        return joined.decode(errors="replace")


def ids(*pieces: str | bytes | int) -> list[int]:
    return [
        each if isinstance(each, int) else ID_OF[each.encode() if isinstance(each, str) else each]
        for each in pieces
    ]


RULE = StopRule(cast(Tokenizer, Pieces()), [EOS, OTHER_EOS])


def feed(output_ids: Iterable[int], **params: Any) -> tuple[SampleOutput | None, int]:
    """Generate token by token; return the output and how many tokens it took."""
    sequence = made_sequence((5, 6), samples=(2,), **params)
    places = np.array([sequence.row_index])
    for count, token in enumerate(output_ids, start=1):
        generate(sequence, token)
        known, last = np.array([count]), np.array([token])
        [may_end] = RULE.may_end(sequence.table, places, known, last)
        output = RULE.output(sequence)
        assert may_end or output is None, "a sequence goes on that has ended"
        if output is not None:
            assert output.index == 2
            assert output.token_ids == tuple(sequence.output_token_ids)
            return output, count
    return None, sequence.num_output_tokens


def ended(output_ids: Iterable[int], **params: Any) -> SampleOutput:
    output, _ = feed(output_ids, **params)
    assert output is not None
    return output


@pytest.mark.parametrize("eos", [EOS, OTHER_EOS])
def test_an_end_of_sequence_token(eos: int) -> None:
    output = ended(ids("a", "b", eos, "a"))
    assert (output.text, output.finish_reason, output.stop_reason) == (
        "ab",
        FinishReason.STOP,
        None,
    )
    assert output.token_ids == tuple(ids("a", "b", eos))  # it was generated, and is reported


def test_an_answer_that_ends_at_once_is_empty() -> None:
    assert ended([EOS]).text == ""


def test_max_tokens() -> None:
    output = ended(ids("a", "b", "ab", "a"), max_tokens=3)
    assert (output.text, output.finish_reason, output.stop_reason) == (
        "abab",
        FinishReason.LENGTH,
        None,
    )


def test_end_of_sequence_as_the_last_token_is_a_stop() -> None:
    assert ended(ids("a", EOS), max_tokens=2).finish_reason is FinishReason.STOP


def test_ignore_eos_goes_on() -> None:
    output = ended(ids("a", EOS, "b"), ignore_eos=True, max_tokens=3)
    assert (output.text, output.finish_reason) == ("ab", FinishReason.LENGTH)


def test_a_stop_token_is_named_and_not_in_the_text() -> None:
    output = ended(ids("a", "bb", "a"), stop_token_ids=(ID_OF[b"bb"],))
    assert (output.text, output.stop_reason) == ("a", ID_OF[b"bb"])
    assert output.finish_reason is FinishReason.STOP


def test_a_stop_token_stops_where_end_of_sequence_is_ignored() -> None:
    output = ended(ids("a", EOS), stop_token_ids=(EOS,), ignore_eos=True)
    assert output.stop_reason == EOS


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["a", "END"], "END", "a"),
        (["a", "EN", "D."], "END", "a"),  # ends within a token (vllm#45636)
        (["a", "EN", "D."], "END.", "a"),  # over two tokens (vllm#3672)
        (["ab", "ba"], "bb", "a"),  # begins and ends within tokens
        (["a", "b", "b", "a"], "abba", ""),
        (["a", "\n\n"], "\n", "a"),
        (["a", SPECIAL, "b"], "ab", ""),  # special tokens are not part of the text
        (["a", b"\xc3", b"\xa9"], "é", "a"),  # a character over two tokens
        ([b"\xf0", b"\x9f", b"\x98", b"\x80", "a"], "😀a", ""),
    ],
)
def test_a_stop_string_across_token_borders(
    pieces: list[str | bytes | int], stop: str, text: str
) -> None:
    output, count = feed(ids(*pieces, "a", "a"), stop=(stop,))
    assert output is not None
    assert count == len(pieces), "stopped by another token than the one that completes the string"
    assert (output.text, output.stop_reason) == (text, stop)
    assert output.finish_reason is FinishReason.STOP


def test_the_first_of_several_stop_strings_cuts() -> None:
    """One token completes both."""
    output = ended(ids("a", "b", "END"), stop=("D", "bEN"))
    assert (output.text, output.stop_reason) == ("a", "bEN")


def test_the_longest_of_several_stop_strings_is_found_across_tokens() -> None:
    output = ended(ids("a", "a", "b", "b", "a", "a"), stop=("D", "abba"))
    assert (output.text, output.stop_reason) == ("a", "abba")


def test_a_stop_string_at_max_tokens_is_a_stop() -> None:
    assert ended(ids("a", "END"), stop=("END",), max_tokens=2).finish_reason is FinishReason.STOP


def test_a_long_way_to_a_long_stop_string() -> None:
    stop = "ab" * 100
    output, count = feed(ids(*["b"] * 300, *["a", "b"] * 100, "a"), stop=(stop,), max_tokens=900)
    assert output is not None
    assert count == 500
    assert output.text == "b" * 300


class TestMinTokens:
    def test_nothing_stops_before_it(self) -> None:
        early = ids("END", EOS, "bb")
        stops: dict[str, Any] = {"stop": ("END",), "stop_token_ids": (ID_OF[b"bb"],)}
        output, count = feed([*early, *ids("a", EOS)], min_tokens=4, **stops)
        assert output is not None
        assert count == 5
        assert output.finish_reason is FinishReason.STOP

    def test_a_stop_string_before_it_does_not_count_later(self) -> None:
        """Else an answer of at least six tokens would be cut to one."""
        output = ended(ids("a", "END", *["b"] * 8), stop=("END",), min_tokens=6, max_tokens=10)
        assert output.finish_reason is FinishReason.LENGTH
        assert output.text == "aEND" + "b" * 8

    def test_the_text_is_cut_at_the_stop_string_that_counts(self) -> None:
        pieces = ids("a", "END", "b", "b", "END", "a")
        output, count = feed(pieces, stop=("END",), min_tokens=3)
        assert output is not None
        assert count == 5
        assert output.text == "aENDbb"

    def test_a_stop_string_that_straddles_it_counts(self) -> None:
        output, count = feed(ids("a", "a", "EN", "D."), stop=("END",), min_tokens=3)
        assert output is not None
        assert (count, output.text) == (4, "aa")

    def test_it_does_not_outlast_max_tokens(self) -> None:
        output = ended(ids("a", EOS, "b"), min_tokens=3, max_tokens=3)
        assert output.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        assert len(output.token_ids) == 3


def test_an_unfinished_character_at_the_end_is_kept() -> None:
    """lattice#751 dropped it in silence; the bytes that did come show as U+FFFD."""
    assert ended(ids("a", b"\xf0", b"\x9f", EOS)).text == "a\ufffd"


def test_the_text_holds_nothing_of_the_prompt() -> None:
    """vllm#48853: an answer that completes the prompt's last character leaked the prompt."""
    sequence = made_sequence(ids("a", b"\xc3"), ids(b"\xa9", "b"), max_tokens=2)
    output = RULE.output(sequence)
    assert output is not None
    assert output.text == "\ufffdb"


class TestWhatTheTextHolds:
    """`include_stop_str_in_output` and `skip_special_tokens`."""

    def test_a_stop_string_that_is_kept_ends_the_text(self) -> None:
        output = ended(ids("a", "EN", "D."), stop=("END",), include_stop_str_in_output=True)
        assert (output.text, output.stop_reason) == ("aEND", "END")

    def test_a_stop_token_that_is_kept(self) -> None:
        kept = {"include_stop_str_in_output": True, "stop_token_ids": (ID_OF[b"bb"],)}
        assert ended(ids("a", "bb"), **kept).text == "abb"

    def test_an_end_of_text_that_is_kept_is_a_special_token(self) -> None:
        kept: dict[str, Any] = {"include_stop_str_in_output": True}
        assert ended(ids("a", EOS), **kept).text == "a"
        assert ended(ids("a", EOS), **kept, skip_special_tokens=False).text == "a<0>"

    def test_special_tokens_that_are_shown(self) -> None:
        output = ended(ids("a", SPECIAL, "b", EOS), skip_special_tokens=False)
        assert output.text == "a<2>b"

    def test_a_stop_string_within_a_special_token_that_is_shown(self) -> None:
        output = ended(ids("a", SPECIAL, "b"), stop=("2>b",), skip_special_tokens=False)
        assert (output.text, output.stop_reason) == ("a<", "2>b")

    def test_a_stop_string_past_many_tokens_without_text(self) -> None:
        output = ended(ids("a", *[SPECIAL] * 60, "b"), stop=("ab",), max_tokens=100)
        assert (output.text, len(output.token_ids)) == ("", 62)


class TestRepetition:
    @pytest.mark.parametrize("cycle", [["a"], ["a", "b"], ["b", "b", "a", SPECIAL]])
    def test_it_stops_where_the_cycle_ends_for_the_last_time(self, cycle: list[str | int]) -> None:
        output, count = feed(ids(" ", *cycle * 9), stop_on_repetition=3)
        assert output is not None
        assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, "repetition")
        assert count == 1 + 3 * len(cycle)
        assert output.text == " " + "".join(str(each) for each in cycle * 3 if each != SPECIAL)

    def test_it_is_off_by_default_and_keeps_to_min_tokens(self) -> None:
        assert ended(ids(*["a"] * 9), max_tokens=9).finish_reason is FinishReason.LENGTH
        output, count = feed(ids(*["a"] * 9), stop_on_repetition=2, min_tokens=6)
        assert output is not None
        assert count == 6


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(2, 5))
def test_repeats_against_its_definition(tokens: list[int], count: int) -> None:
    found = any(
        len(tokens) >= cycle * count and tokens[-cycle * count :] == tokens[-cycle:] * count
        for cycle in range(1, MAX_CYCLE + 1)
    )
    assert repeats(np.array(tokens, dtype=np.int32), count) == found


def test_a_cycle_longer_than_the_longest_is_none() -> None:
    distinct = np.arange(MAX_CYCLE + 1, dtype=np.int32)
    assert repeats(np.tile(distinct[1:], 2), 2)
    assert not repeats(np.tile(distinct, 2), 2)


@given(
    output_ids=st.lists(st.integers(2, 18), max_size=40),
    stop=st.lists(
        st.text("abEND \n.é😀", min_size=1, max_size=6), min_size=1, max_size=3, unique=True
    ),
    min_tokens=st.sampled_from([0, 0, 1, 5]),
)
def test_any_stop_string_ends_at_its_first_token(
    output_ids: list[int], stop: list[str], min_tokens: int
) -> None:
    """Against a search through the whole text after each token."""
    pieces = Pieces()
    early = len(pieces.decode(output_ids[:min_tokens]))
    expected = None
    for count in range(1, len(output_ids) + 1):
        text = pieces.decode(output_ids[:count])
        found = [
            (place, each)
            for each in stop
            for place in range(len(text))
            if text.startswith(each, place) and place + len(each) > early
        ]
        if found:
            place, each = min(found)
            expected = (count, text[:place], each)
            break
    output, count = feed(output_ids, stop=tuple(stop), min_tokens=min_tokens, max_tokens=1000)
    got = None if output is None else (count, output.text, output.stop_reason)
    assert got == expected


def test_with_a_tokenizer_from_a_folder(make_tokenizer: Callable[..., Path]) -> None:
    """Bytes as tokens, and special tokens that decoding leaves out."""
    tokenizer = Tokenizer.from_folder(make_tokenizer())
    [output_ids] = tokenizer.encode_batch(["Grüße<|im_start|> an 😀 alle"], False)
    rule = StopRule(tokenizer, [])
    whole = "Grüße an 😀 alle"
    for stop in ("üß", "e an", "😀", "alle"):
        text = whole[: whole.index(stop)]
        sequence = made_sequence((1,), stop=(stop,))
        output = None
        for token in output_ids:
            generate(sequence, token)
            output = output or rule.output(sequence)
        assert output is not None
        assert (output.text, output.stop_reason) == (text, stop)
