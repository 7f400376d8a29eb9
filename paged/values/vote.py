"""Votes of the samples of a row, read by a regular expression or a JSON path, and their count.

Patterns are untrusted input, so RE2 matches them (in pyarrow): its time is linear in the text
and its memory bounded, whatever the pattern; look-around and back-references are refused.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class VoteResult:
    """Votes of `drawn` samples. `counts` are in the order of first votes; `winner` has most, the
    earliest on ties; None if no sample voted."""

    winner: str | None
    counts: dict[str, int]
    drawn: int


class Ballot:
    """Known votes of `num_samples` samples.

    It is decided when the remaining votes cannot change the winner. The number of samples drawn
    therefore depends on the samples alone.
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._counts: dict[str, int] = {}
        self._num_drawn = 0

    @classmethod
    def of(cls, vote: str, num_samples: int, texts: Iterable[str]) -> "Ballot":
        """Return the ballot with the votes of these texts."""
        ballot = cls(num_samples)
        read = vote_reader(vote)
        for text in texts:
            ballot.add(read(text))
        return ballot

    @classmethod
    def decided(cls, vote: str, num_samples: int, texts: Iterable[str]) -> VoteResult:
        """Return the result of the shortest sequence of first samples that decides the vote."""
        ballot = cls(num_samples)
        read = vote_reader(vote)
        for text in texts:
            ballot.add(read(text))
            if not ballot.num_needed:
                break
        return ballot.result

    def add(self, vote: str | None) -> None:
        """Count the next sample's vote, None if it has none."""
        self._num_drawn += 1
        if vote is not None:
            self._counts[vote] = self._counts.get(vote, 0) + 1

    @property
    def result(self) -> VoteResult:
        """Current result; final once decided."""
        winner = max(
            self._counts, key=self._counts.__getitem__, default=None
        )  # the first of equals
        return VoteResult(winner, dict(self._counts), self._num_drawn)

    @property
    def num_needed(self) -> int:
        """Minimum number of further samples before a decision; 0 if decided.

        The next ones decide soonest if all vote for the one that leads.
        """
        left = self._num_samples - self._num_drawn
        first, second = self._leading()
        # After `more` votes for the first one, the others' votes must not suffice for the second,
        # which would have to come out ahead if its first vote is the later one.
        return next(
            more for more in range(left + 1) if more == left or first + more >= second + left - more
        )

    def _leading(self) -> tuple[int, int]:
        """Return the votes of the winner and of the best other, plus one if that wins ties."""
        winner = self.result.winner
        if winner is None:
            return 0, 0
        first = list(self._counts).index(winner)
        named = enumerate(self._counts.items())
        others = [count + (at < first) for at, (name, count) in named if name != winner]
        return self._counts[winner], max(others, default=0)


JSON_PATH = "json:"
MAX_VOTE_LENGTH = 1024

Reader = Callable[[str], str | None]
"""Returns the vote of a text, None without one."""


def is_vote(value: object) -> bool:
    """Return true for a regular expression, or `json:` and a path; None for no vote."""
    if value is None:
        return True
    if not isinstance(value, str) or not 0 < len(value) <= MAX_VOTE_LENGTH:
        return False
    try:
        vote_reader(value)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def vote_reader(vote: str) -> Reader:
    """Return the function that reads a vote from a text.

    A regular expression votes with the first group of its first match, or the whole match without
    a group. `json:a.0.b` votes with the value at this path of names and list indices: a text
    unchanged, anything else as JSON. Blanks around a vote are removed, and an empty vote is none.
    Raises `ValueError` for an invalid pattern or path.
    """
    if vote.startswith(JSON_PATH):
        return _json_reader(vote.removeprefix(JSON_PATH))
    return _regex_reader(vote)


def _regex_reader(pattern: str) -> Reader:
    import pyarrow  # imported here: it takes long
    from pyarrow import compute

    whole = f"\\A(?s:.*?)({pattern})(?s:.*)\\z"

    def matches(text: str) -> bool:
        found: bool = compute.match_substring_regex(pyarrow.scalar(text), pattern=pattern).as_py()
        return found

    def group(text: str, number: int) -> str:
        found = compute.replace_substring_regex(
            pyarrow.scalar(text), pattern=whole, replacement=f"\\{number}"
        )
        return str(found.as_py())

    matches("")  # raises a ValueError for what RE2 does not take
    group("", 1)
    number = 2
    try:
        group("", number)
    except ValueError:  # there is no group but the one around all of it
        number = 1
    return lambda text: group(text, number).strip() or None if matches(text) else None


def _json_reader(path: str) -> Reader:
    keys = path.split(".")
    if not all(keys):
        raise ValueError("a path has no empty name")

    def read(text: str) -> str | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        if value is None:
            return None
        found = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return found.strip() or None

    return read
