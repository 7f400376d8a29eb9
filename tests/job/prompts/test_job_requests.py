"""From rows to engine requests: encoding in batches, limits, and errors that keep to their row."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.job.prompts.requests import JobRow, RequestBuilder
from pagedrun.paged.text.prompt import MAX_ENCODED_CHARS
from pagedrun.paged.text.prompt_encoder import ENCODE_BATCH_ROWS, Limits, PromptEncoder
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.sampling_params import SamplingParams

BOS = 99
LIMITS = Limits(max_model_len=8, vocab_size=100)


class LetterTokenizer:
    """One token a letter, a begin token with special tokens; cannot encode "?"."""

    chat_template: str | None = None

    def __init__(self) -> None:
        self.calls: list[int] = []

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        self.calls.append(len(texts))
        if any("?" in text for text in texts):
            raise RowError("tokenizer_error", "cannot encode")
        start = [BOS] if add_special_tokens else []
        return [[*start, *(ord(letter) - ord("a") for letter in text)] for text in texts]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        template_kwargs: object = None,
        *,
        time: datetime | None = None,
    ) -> str:
        return "".join(message["content"] for message in messages)


def build(
    *columns: dict[str, Any], tokenizer: LetterTokenizer | None = None, max_tokens: int = 2
) -> list[JobRow]:
    tokenizer = tokenizer or LetterTokenizer()
    prompts = PromptBuilder(PromptConfig(), SamplingParams(max_tokens=max_tokens), tokenizer)
    rows = [
        Row(index, index + 1, 0, b"", f"row-{index}", each) for index, each in enumerate(columns)
    ]
    return list(RequestBuilder(prompts, PromptEncoder(tokenizer, LIMITS)).build(rows))


def outcome(columns: dict[str, Any], max_tokens: int = 2) -> tuple[int, ...] | str:
    (row,) = build(columns, max_tokens=max_tokens)
    if row.error is not None:
        assert row.request is None
        assert row.error.line == 1
        return row.error.code
    assert row.request is not None
    return row.request.prompt_token_ids


def test_special_tokens_are_added_to_prompts_and_not_to_chats() -> None:
    assert outcome({"prompt": "ab"}) == (BOS, 0, 1)
    assert outcome({"messages": [{"role": "user", "content": "ab"}]}) == (0, 1)
    assert outcome({"prompt_token_ids": [5, 6]}) == (5, 6)


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ([], "empty_prompt"),
        ([0], (0,)),
        ([99], (99,)),
        ([100], "token_id_out_of_range"),
        ([-1], "token_id_out_of_range"),
        ([2**31], "token_id_out_of_range"),
        ([10**30], "token_id_out_of_range"),
        ([1] * 7, (1,) * 7),
        ([1] * 8, "prompt_too_long"),
        ([1] * 9, "prompt_too_long"),
    ],
)
def test_ids_are_checked_before_any_engine_sees_them(ids: list[int], wanted: object) -> None:
    assert outcome({"prompt_token_ids": ids}) == wanted


def test_an_empty_text_is_legal_where_a_begin_token_is_added() -> None:
    assert outcome({"prompt": ""}) == (BOS,)
    assert outcome({"messages": [{"role": "user", "content": ""}]}) == "empty_prompt"


def test_a_prompt_too_long_says_both_numbers() -> None:
    (row,) = build({"prompt_token_ids": [1] * 20})
    assert row.error is not None
    assert "20 tokens" in row.error.message
    assert "8" in row.error.message


def test_a_text_beyond_all_reason_is_refused_without_encoding_it() -> None:
    tokenizer = LetterTokenizer()
    (row,) = build({"prompt": "a" * (MAX_ENCODED_CHARS + 1)}, tokenizer=tokenizer)
    assert row.error is not None
    assert (row.error.code, tokenizer.calls) == ("prompt_too_long", [])


@pytest.mark.parametrize(
    ("length", "wanted", "clamped"), [(3, 5, False), (4, 4, True), (7, 1, True)]
)
def test_max_tokens_is_cut_to_the_room_left(length: int, wanted: int, clamped: bool) -> None:
    (row,) = build({"prompt_token_ids": [1] * length, "min_tokens": 5}, max_tokens=5)
    assert row.request is not None
    assert (row.request.params.max_tokens, row.encoded.clamped) == (wanted, clamped)
    assert row.request.params.min_tokens == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [("stop_token_ids", [100]), ("allowed_token_ids", [1, 100]), ("logit_bias", {"100": 1})],
)
def test_ids_outside_the_vocabulary_fail_the_row(name: str, value: object) -> None:
    assert outcome({"prompt": "a", name: value}) == "token_id_out_of_range"


def test_bad_words_become_ids_or_fail_the_row() -> None:
    outside, spoilt, good = build(
        {"prompt": "a", "bad_words": ["b", chr(ord("a") + 100)]},
        {"prompt": "a", "bad_words": ["?"]},
        {"prompt": "a", "bad_words": ["b", " cd"]},
    )
    errors = [(each.error.code, each.error.param) for each in (outside, spoilt) if each.error]
    assert errors == [("token_id_out_of_range", "bad_words"), ("tokenizer_error", "bad_words")]
    assert good.request is not None
    assert good.request.bad_words_ids == ((1,), (2, 3))


def test_one_text_that_cannot_be_encoded_spoils_no_other() -> None:
    rows = build({"prompt": "a"}, {"prompt": "?"}, {"prompt": "b"})
    assert [row.error.code if row.error else None for row in rows] == [
        None,
        "tokenizer_error",
        None,
    ]
    assert rows[2].request is not None
    assert rows[2].request.prompt_token_ids == (BOS, 1)


def test_rows_stay_in_order_over_batches_and_kinds() -> None:
    columns: list[dict[str, Any]] = []
    for number in range(2 * ENCODE_BATCH_ROWS + 3):
        kinds: list[dict[str, Any]] = [
            {"prompt": "a"},
            {"prompt_token_ids": [number % 90]},
            {"messages": [{"role": "user", "content": "b"}]},
            {"nothing": 1},
        ]
        columns.append(kinds[number % 4])
    tokenizer = LetterTokenizer()
    rows = build(*columns, tokenizer=tokenizer)
    assert [row.index for row in rows] == list(range(len(columns)))
    for number, row in enumerate(rows):
        ids = row.request.prompt_token_ids if row.request else None
        assert ids == [(BOS, 0), (number % 90,), (1,), None][number % 4]
    assert max(tokenizer.calls) > 50  # batches, not one call a row


def test_a_row_keeps_what_it_brought() -> None:
    (row,) = build({"prompt": "a", "expected": " yes ", "k": 1, "max_tokens": 1})
    assert (row.input, row.expected) == ({"expected": " yes ", "k": 1}, " yes ")
    (row,) = build({"prompt": "a", "expected": 3})
    assert row.expected is None


def scored(columns: dict[str, Any]) -> tuple[tuple[int, ...], list[tuple[str, tuple[int, ...]]]]:
    """Return the prompt of a row with continuations, and what each of these adds to it."""
    (row,) = build(columns)
    assert row.request is not None
    assert row.encoded.num_prompt_tokens == len(row.request.prompt_token_ids)
    given = [(each.text, each.token_ids) for each in row.request.continuations]
    return row.request.prompt_token_ids, given


class PairTokenizer(LetterTokenizer):
    """Two letters are one token, from the left: what follows changes the last one."""

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        return [[ord(text[place]) % 90 for place in range(0, len(text), 2)] for text in texts]


class CodeTokenizer(LetterTokenizer):
    """A token for each character from the space on, and none besides."""

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        return [[ord(character) - ord(" ") for character in text] for text in texts]


def test_continuations_are_encoded_behind_their_prompt() -> None:
    columns = {"prompt": "ab", "continuations": ["c", "de"]}
    assert scored(columns) == ((BOS, 0, 1), [("c", (2,)), ("de", (3, 4))])
    chat = {"messages": [{"role": "user", "content": "ab"}], "continuations": ["c"]}
    assert scored(chat) == ((0, 1), [("c", (2,))])
    ids = {"prompt_token_ids": [5, 6], "continuations": ["c"]}
    assert scored(ids) == ((5, 6), [("c", (2,))])


def test_white_space_at_the_end_of_a_prompt_goes_to_the_continuations() -> None:
    """The text that comes back is the one that was given."""
    columns = {"prompt": "a  ", "continuations": ["b"]}
    (row,) = build(columns, tokenizer=CodeTokenizer())
    assert row.request is not None
    assert row.request.prompt_token_ids == (65,)
    assert row.request.continuations == (Continuation("b", (0, 0, 66)),)
    (row,) = build({"prompt": "  ", "continuations": ["b"]}, tokenizer=CodeTokenizer())
    assert row.error is not None
    assert row.error.code == "empty_prompt"


def test_continuations_may_be_token_ids() -> None:
    """They come behind the prompt as it is, white space included; their text is what they say."""
    columns = {"prompt": "a  ", "continuations": [[2], [3, 4]]}
    (row,) = build(columns, tokenizer=CodeTokenizer())
    assert row.request is not None
    assert row.request.prompt_token_ids == (65, 0, 0)
    assert row.request.continuations == (Continuation("c", (2,)), Continuation("de", (3, 4)))


@pytest.mark.parametrize("token_id", [-1, 100, 2**31, 10**30])
def test_ids_of_continuations_are_checked_before_a_tokenizer_sees_them(token_id: int) -> None:
    (row,) = build({"prompt": "a", "continuations": [[1], [2, token_id]]})
    assert row.error is not None
    assert (row.error.code, row.error.param) == ("token_id_out_of_range", "continuations")


def test_a_continuation_that_adds_no_token_is_an_error() -> None:
    whole = {"prompt": "a", "continuations": ["bc", "b"]}
    (row,) = build(whole, tokenizer=PairTokenizer())
    assert row.error is not None
    assert (row.error.code, row.error.param) == ("invalid_param", "continuations")
    assert "continuations[1]" in row.error.message


def test_a_continuation_that_is_too_long_or_no_text_is_an_error() -> None:
    for text, code in (("abcdefgh", "prompt_too_long"), ("a" * 4000, "prompt_too_long")):
        (row,) = build({"prompt": "a", "continuations": ["b", text]})
        assert row.error is not None
        assert (row.error.code, row.error.param) == (code, "continuations")
    (row,) = build({"prompt": "a", "continuations": ["?"]})
    assert row.error is not None
    assert row.error.code == "tokenizer_error"


def test_more_than_can_be_encoded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.paged.text.prompt.MAX_ENCODED_CHARS", 11)
    assert scored({"prompt": "aaa", "continuations": ["b", "bbbb"]})[1][1] == ("bbbb", (1,) * 4)
    (row,) = build({"prompt": "aaa", "continuations": ["b", "b", "b"]})
    assert row.error is not None
    assert (row.error.code, row.error.param) == ("prompt_too_long", "continuations")


def test_continuations_do_not_come_back_as_input() -> None:
    (row,) = build({"prompt": "a", "continuations": ["b"], "kind": "x", "expected": "b"})
    assert row.input == {"kind": "x", "expected": "b"}
    assert row.expected == "b"
