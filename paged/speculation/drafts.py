"""Drafts: tokens that a sequence may continue with, computed beside its newest token.

A drafted token is right exactly if the row's own draw at that position gives it: every draw is
keyed by seed, row, sample and position, and rows of the decode path do not depend on each other. So
drafts change when a token is computed and never which.

`PromptLookup` finds drafts in the sequence itself: where its last tokens have occurred before, it
may go on as it did there. It follows the longest suffix that has occurred in a suffix automaton (A.
Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985), in amortized
constant time per token.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

MIN_MATCH = 3  # tokens that must have occurred before
_ROOT = 0


class Drafter(Protocol):
    """Source of drafts for one sequence."""

    def append(self, tokens: Seq[int]) -> None:
        """Add tokens that the sequence has now."""

    def propose(self, most: int) -> list[int]:
        """Return up to `most` tokens that may follow, none if nothing suggests any."""


class PromptLookup:
    """Drafts from the tokens of the sequence itself.

    A state of the automaton is a set of strings that end at the same places; `_ends` has one of
    them, the latest that was matched.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]
        self._ends = [0]
        self._last = _ROOT
        self._matched = _ROOT  # state of the longest suffix that has occurred before
        self._num_matched = 0

    def append(self, tokens: Seq[int]) -> None:
        """Add tokens to the sequence."""
        for token in tokens:
            self._match(token)
            self._extend(token)

    def propose(self, most: int) -> list[int]:
        """Return the tokens that followed the last ones where they occurred before."""
        if self._num_matched < MIN_MATCH:
            return []
        end = self._ends[self._matched]
        return self._tokens[end : end + most]

    def _match(self, token: int) -> None:
        """Continue the longest suffix that has occurred before by a token."""
        state, length = self._matched, self._num_matched
        self._ends[state] = len(self._tokens)  # where it has occurred last
        while state != _ROOT and token not in self._next[state]:
            state = self._links[state]
            length = self._lengths[state]
        found = self._next[state].get(token)
        if found is None:
            self._matched, self._num_matched = _ROOT, 0
        else:
            self._matched, self._num_matched = found, length + 1

    def _extend(self, token: int) -> None:
        """Add the strings that end with a new token."""
        self._tokens.append(token)
        end = len(self._tokens)
        state = self._last
        new = self._added({}, self._lengths[state] + 1, end)
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._links[state]
        self._links[new] = _ROOT if state == -1 else self._suffix(state, token)
        self._last = new

    def _suffix(self, state: int, token: int) -> int:
        """Return the state of the strings of `state` with a token behind them, split off if it has
        longer ones."""
        found, length = self._next[state][token], self._lengths[state] + 1
        if self._lengths[found] == length:
            return found
        clone = self._added(dict(self._next[found]), length, self._ends[found])
        self._links[clone] = self._links[found]
        self._links[found] = clone
        while state != -1 and self._next[state].get(token) == found:
            self._next[state][token] = clone
            state = self._links[state]
        if self._matched == found and self._num_matched <= length:
            self._matched = clone
        return clone

    def _added(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._links.append(_ROOT)
        self._lengths.append(length)
        self._ends.append(end)
        return len(self._next) - 1
