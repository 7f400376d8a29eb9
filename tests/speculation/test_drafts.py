"""Drafts from a sequence's own text: where its last tokens have occurred before."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.paged.speculation.drafts import MIN_MATCH, PromptLookup


def longest_match(tokens: Sequence[int]) -> int:
    """Return the length of the longest suffix that has occurred before."""
    count = len(tokens)
    for length in range(count - 1, 0, -1):
        suffix = tokens[count - length :]
        if any(tokens[at : at + length] == suffix for at in range(count - length)):
            return length
    return 0


@given(st.lists(st.integers(0, 2), max_size=40))
@settings(max_examples=200, deadline=None)
def test_drafts_follow_the_longest_suffix(tokens: list[int]) -> None:
    lookup = PromptLookup()
    for end in range(1, len(tokens) + 1):
        lookup.append(tokens[end - 1 : end])
        seen, proposed = tokens[:end], lookup.propose(4)
        length = longest_match(seen)
        if length < MIN_MATCH:
            assert not proposed
            continue
        ends = [at for at in range(length, end) if seen[at - length : at] == seen[end - length :]]
        assert proposed in [seen[at : at + 4] for at in ends]
        assert proposed


def test_the_latest_occurrence_is_followed() -> None:
    lookup = PromptLookup()
    lookup.append([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3])
    assert lookup.propose(1) == [5]


def test_many_tokens_at_once_are_those_one_by_one() -> None:
    tokens = [i * i % 7 for i in range(60)]
    at_once, one_by_one = PromptLookup(), PromptLookup()
    at_once.append(tokens)
    for token in tokens:
        one_by_one.append([token])
    assert at_once.propose(9) == one_by_one.propose(9) != []
