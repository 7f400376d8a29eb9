"""Words that are forbidden, as token ids: by vLLM's rule."""

import pytest

from pagedrun.paged.text.prompt_encoder import MAX_KEPT, BadWords
from pagedrun.paged.values.errors import RowError

IDS = {"cat": [1], " cat": [2], "catfish": [1, 5], " catfish": [2, 5], "dog": [3, 4]}


class Encoder:
    """A tokenizer with words of its own; what it does not know it spells out."""

    def __init__(self) -> None:
        self.num_calls = 0

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        raise AssertionError("words are only encoded")

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        assert not add_special_tokens
        self.num_calls += 1
        if "bad" in texts:
            raise RowError("tokenizer_error", "the tokenizer failed", param="prompt")
        return [IDS.get(text, [100 + ord(char) for char in text.strip("~")]) for text in texts]


def test_a_word_is_forbidden_behind_a_space_too_where_its_tokens_differ() -> None:
    words = BadWords(Encoder())
    assert words.token_ids(("cat",)) == ((1,), (2,))
    assert words.token_ids(("catfish", "cat")) == ((1, 5), (2, 5), (1,), (2,))


def test_a_space_that_only_adds_a_token_adds_no_word() -> None:
    assert BadWords(Encoder()).token_ids(("dog",)) == ((3, 4),)


def test_spaces_in_front_are_not_part_of_a_word() -> None:
    assert BadWords(Encoder()).token_ids(("  cat",)) == ((1,), (2,))


def test_no_words_ask_for_nothing() -> None:
    encoder = Encoder()
    assert BadWords(encoder).token_ids(()) == ()
    assert encoder.num_calls == 0


def test_the_same_words_are_encoded_once_and_not_all_are_remembered() -> None:
    encoder = Encoder()
    words = BadWords(encoder)
    for _ in range(3):
        words.token_ids(("cat",))
    assert encoder.num_calls == 1
    for index in range(MAX_KEPT):
        words.token_ids((str(index),))
    words.token_ids(("cat",))
    assert encoder.num_calls == 2 + MAX_KEPT


@pytest.mark.parametrize(("word", "code"), [("~", "invalid_param"), ("bad", "tokenizer_error")])
def test_a_word_that_cannot_be_encoded_is_named(word: str, code: str) -> None:
    with pytest.raises(RowError) as caught:
        BadWords(Encoder()).token_ids((word,))
    assert (caught.value.code, caught.value.param) == (code, "bad_words")
