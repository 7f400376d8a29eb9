"""Index of the substrings of growing texts: what followed where a text's last tokens were before.

A suffix automaton of several texts (A. Blumer et al., "The smallest automaton recognizing the
subwords of a text", 1985; for several texts M. Mohri et al., "General suffix automaton construction
algorithm and space bounds", 2009). A state is a set of strings that occur at the same places. Texts
grow token by token, in amortized constant time.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

_ROOT = 0


@dataclass(slots=True)
class IndexedText:
    """Text of an index: its tokens, and the longest of its suffixes that has occurred before.

    state: of the whole text. matched, num_matched: state and length of that suffix.
    """

    tokens: list[int] = field(default_factory=list)
    state: int = _ROOT
    matched: int = _ROOT
    num_matched: int = 0

    def restart(self) -> list[int]:
        """Make this a text without tokens, for another index; return those that it had."""
        tokens, self.tokens = self.tokens, []
        self.state = self.matched = _ROOT
        self.num_matched = 0
        return tokens


class SuffixIndex:
    """Substrings of texts. `num_tokens`: of all texts."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._next: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]
        # A place of each state: the latest with a token behind it, or its first.
        self._places: list[tuple[IndexedText, int]] = [(IndexedText(), 0)]

    def extend(self, text: IndexedText, tokens: Seq[int]) -> None:
        """Append tokens to a text of this index, or to a new one."""
        for token in tokens:
            self._match(text, token)
            text.tokens.append(token)
            text.state = self._extended(text, token)
        self.num_tokens += len(tokens)

    def following(self, text: IndexedText, most: int) -> list[int]:
        """Return up to `most` tokens that followed the matched suffix of a text elsewhere.

        Where the text itself ends before, it goes on as if it repeated what followed.
        """
        self._go_up(text)
        elsewhere, end = self._places[text.matched]
        found = elsewhere.tokens[end : end + most] if text.num_matched else []
        if elsewhere is text and found:
            found = (found * -(-most // len(found)))[:most]
        return found

    def _match(self, text: IndexedText, token: int) -> None:
        """Continue the longest suffix that has occurred before by a token."""
        self._go_up(text)
        state, length = text.matched, text.num_matched
        self._places[state] = (text, len(text.tokens))
        while state != _ROOT and token not in self._next[state]:
            state = self._links[state]
            length = self._lengths[state]
        found = self._next[state].get(token)
        text.matched, text.num_matched = (_ROOT, 0) if found is None else (found, length + 1)

    def _go_up(self, text: IndexedText) -> None:
        """Move a match to the state that has its strings by now: states are split."""
        while text.num_matched <= self._lengths[self._links[text.matched]] and text.matched:
            text.matched = self._links[text.matched]

    def _extended(self, text: IndexedText, token: int) -> int:
        """Add the strings that end with a text's newest token; return the state of the text."""
        state = text.state
        if token in self._next[state]:
            return self._suffix(state, token)
        place = (text, len(text.tokens))
        new = self._added({}, self._lengths[state] + 1, place)
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._links[state]
        self._links[new] = _ROOT if state == -1 else self._suffix(state, token)
        return new

    def _suffix(self, state: int, token: int) -> int:
        """Return the state of the strings of `state` with a token behind them, split off if it has
        longer ones."""
        found, length = self._next[state][token], self._lengths[state] + 1
        if self._lengths[found] == length:
            return found
        clone = self._added(dict(self._next[found]), length, self._places[found])
        self._links[clone] = self._links[found]
        self._links[found] = clone
        while state != -1 and self._next[state].get(token) == found:
            self._next[state][token] = clone
            state = self._links[state]
        return clone

    def _added(self, following: dict[int, int], length: int, place: tuple[IndexedText, int]) -> int:
        self._next.append(following)
        self._links.append(_ROOT)
        self._lengths.append(length)
        self._places.append(place)
        return len(self._next) - 1
