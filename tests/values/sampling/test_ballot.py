"""Votes: what a text votes for, and when no further sample can change the winner."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.values.vote import Ballot, vote_reader

Votes = Sequence[str | None]


def ballot_of(num_samples: int, votes: Votes) -> Ballot:
    ballot = Ballot(num_samples)
    for vote in votes:
        ballot.add(vote)
    return ballot


def winner_of(votes: Votes) -> str | None:
    """Return who has most votes, of equals who had one first."""
    names = [vote for vote in votes if vote is not None]
    return max(dict.fromkeys(names), key=names.count, default=None)


def is_decided(votes: Votes, num_samples: int) -> bool:
    """Try everything that the samples to come can vote for, two new names included."""
    names = {*votes, None, "new", "newer"}
    rest = itertools.product(names, repeat=num_samples - len(votes))
    return len({winner_of([*votes, *more]) for more in rest}) == 1


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=6), st.integers(0, 3))
def test_it_is_decided_when_nothing_can_change_the_winner(votes: list[str | None], n: int) -> None:
    num_samples = max(len(votes) + n, 1)
    ballot = ballot_of(num_samples, votes)
    assert ballot.result.winner == winner_of(votes)
    assert (ballot.num_needed == 0) == is_decided(votes, num_samples)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=24))
def test_drawn_in_waves_none_is_drawn_in_vain(votes: list[str | None]) -> None:
    num_samples, ballot, drawn = len(votes), Ballot(len(votes)), 0
    while needed := ballot.num_needed:
        for vote in votes[drawn : drawn + needed]:
            assert ballot.num_needed, "decided within a wave"
            ballot.add(vote)
        drawn += needed
    assert ballot.result.drawn == drawn <= num_samples
    assert ballot.result.winner == winner_of(votes)
    assert ballot.result.counts == {
        name: votes[:drawn].count(name) for name in ballot.result.counts
    }
    names = iter(votes)
    texts = (str(vote) for vote in names)
    decided = Ballot.decided("[abc]", num_samples, texts)
    assert decided == ballot.result


@pytest.mark.parametrize(
    ("vote", "text", "found"),
    [
        (r"answer is (\d+)", "The answer is 12. The answer is 13.", "12"),
        (r"\d+", "no 7, 8", "7"),
        ("(?i)^(yes|no)$", "YES", "YES"),
        ("(?i)^(yes|no)$", "oh yes", None),
        ("a(?P<x>.)(.)", "xabc", "b"),
        ("(?s)a(.*)z", "a\n b \nz", "b"),
        ("x( *)y", "x  y", None),  # nothing but blanks
        ("(a)|b", "b", None),  # its group has no part in the match
        ("é(.)", "né😀", "😀"),
        ("json:a", '{"a": " x "}', "x"),
        ("json:a.1.b", '{"a": [0, {"b": [1, {"d": 2, "c": null}]}]}', '[1, {"c": null, "d": 2}]'),
        ("json:a", '{"a": null}', None),
        ("json:a", "[1]", None),
        ("json:1", "[true]", None),
        ("json:0", "[true]", "true"),
        ("json:a", "no JSON", None),
        ("json:a", "[" * 10**5, None),
    ],
)
def test_what_a_text_votes_for(vote: str, text: str, found: str | None) -> None:
    assert vote_reader(vote)(text) == found


@pytest.mark.parametrize("vote", ["(a*)*b", "(a|aa)+$", "(.*)(.*)(.*)(.*)x"])
def test_an_expression_that_would_take_for_ever_elsewhere(vote: str) -> None:
    """Backtracking would take longer than there is time for all tests."""
    assert vote_reader(vote)("a" * 50_000 + "!") is None
