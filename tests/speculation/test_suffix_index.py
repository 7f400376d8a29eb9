"""Index of texts: where the last tokens of one have occurred, and what followed."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.speculation.suffix_index import IndexedText, SuffixIndex


def longest_match(tokens: Sequence[int]) -> int:
    """Return the length of the longest suffix that has occurred before."""
    count = len(tokens)
    for length in range(count - 1, 0, -1):
        suffix = tokens[count - length :]
        if any(tokens[at : at + length] == suffix for at in range(count - length)):
            return length
    return 0


def behind(own: list[int], suffix: list[int], others: Sequence[list[int]] = ()) -> list[list[int]]:
    """Return what follows each occurrence, up to four tokens; those of its own text are repeated
    up to there."""
    size, found = len(suffix), []
    for text in (own, *others):
        for at in range(len(text) - size + 1):
            if text[at : at + size] == suffix:
                rest = text[at + size : at + size + 4]
                found.append((rest * 4)[:4] if text is own else rest)
    return found


@given(st.lists(st.integers(0, 2), max_size=40))
def test_one_text_matches_its_longest_suffix(tokens: list[int]) -> None:
    index, text = SuffixIndex(), IndexedText()
    for end in range(1, len(tokens) + 1):
        index.extend(text, tokens[end - 1 : end])
        seen, found = tokens[:end], index.following(text, 4)
        assert text.num_matched == longest_match(seen)
        if text.num_matched:
            assert found
            assert found in behind(seen, seen[end - text.num_matched :])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=60))
def test_matches_of_several_growing_texts_occur_elsewhere(steps: list[tuple[int, int]]) -> None:
    index, texts = SuffixIndex(), [IndexedText() for _ in range(3)]
    for which, token in steps:
        index.extend(texts[which], [token])
        text, found = texts[which], index.following(texts[which], 4)
        suffix = text.tokens[len(text.tokens) - text.num_matched :]
        others = [each.tokens for each in texts if each is not text]
        places = behind(text.tokens, suffix, others)
        assert found in places or not text.num_matched
        assert text.num_matched == 0 or len(places) > 1
    assert index.num_tokens == len(steps)


def test_the_latest_occurrence_is_followed() -> None:
    index, text = SuffixIndex(), IndexedText()
    index.extend(text, [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3])
    assert index.following(text, 1) == [5]


def test_a_text_that_repeats_itself_goes_on_repeating() -> None:
    index, text = SuffixIndex(), IndexedText()
    index.extend(text, [9, 1, 2, 3, 1, 2, 3])
    assert index.following(text, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_a_text_follows_another() -> None:
    index, text = SuffixIndex(), IndexedText()
    index.extend(IndexedText(), [7, 1, 2, 3, 4, 5])
    index.extend(text, [9, 1, 2, 3])
    assert text.num_matched == 3
    assert index.following(text, 2) == [4, 5]


def test_many_tokens_at_once_are_those_one_by_one() -> None:
    tokens = [i * i % 7 for i in range(60)]
    found = []
    for size in (60, 1):
        index, text = SuffixIndex(), IndexedText()
        for start in range(0, 60, size):
            index.extend(text, tokens[start : start + size])
        found.append(index.following(text, 9))
    assert found[0] == found[1] != []
