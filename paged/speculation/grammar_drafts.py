"""Drafts of structured answers: what a grammar forbids is cut off, what it leaves is appended.

A forced token is the only one that the grammar allows. Between forced tokens most grammars leave
few choices, such as white space before a key of JSON, or a quote with or without its colon. Models
make them alike each time, so that the last choice in the same situation is a draft, and with it the
forced text behind.

Everything is tried on a copy of the answer's own matcher.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagedrun.paged.speculation.drafts import GRAMMAR, Proposal
from pagedrun.paged.text.grammar import TokenMask, compute_mask
from pagedrun.paged.text.structured_answer import GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_ALLOWED = 256  # tokens of a choice that is remembered
MIN_TIMES = 2  # in succession that a choice was the same, before it is a draft
ALWAYS = 2**16  # times of a forced token
MAX_CHOICES = 1024  # 3 kB each at most
Situation = tuple[int, bytes, bytes]
"""Newest token, and words of a mask that allow any: their indices, and the words."""


@dataclass(slots=True)
class _Choice:
    """Token that was chosen last, and the number of times in succession."""

    token: int
    times: int = 0


class GrammarChoices:
    """Choices of a run's answers, by situation; those of the latest are kept."""

    def __init__(self) -> None:
        self._last: dict[Situation, _Choice] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, situation: Situation, token: int) -> None:
        """Add a choice."""
        last = self._last.pop(situation, None)
        if last is None or last.token != token:
            last = _Choice(token)
        last.times += 1
        self._last[situation] = last
        if len(self._last) > MAX_CHOICES:
            del self._last[next(iter(self._last))]

    def likely(self, situation: Situation) -> tuple[int, int] | None:
        """Return the token that was chosen the last times, and their number; None if choices
        differed."""
        last = self._last.get(situation)
        return (last.token, last.times) if last and last.times >= MIN_TIMES else None


class _Extension(NamedTuple):
    """Forced and likely tokens behind a position.

    times: those of the least repeated choice. situations: before each token, and behind the last;
    None before a forced one, and where too many tokens are allowed.
    """

    tokens: list[int]
    times: int
    situations: list[Situation | None]


class GrammarDrafter:
    """Drafts from the grammar of an answer, and corrections of other drafts by it.

    matcher: returns that of the answer, None where no grammar binds the next token.
    """

    def __init__(
        self, matcher: Callable[[], GrammarMatcher | None], choices: GrammarChoices
    ) -> None:
        self._matcher = matcher
        self._choices = choices
        self._newest = -1
        self._proposed: _Extension | None = None

    def append(self, tokens: Seq[int]) -> None:
        """Note the choices of the answer, up to its first token that was not proposed."""
        self._newest = tokens[-1] if tokens else self._newest
        if (proposed := self._proposed) is None:
            return
        self._proposed = None
        for index, (token, situation) in enumerate(zip(tokens, proposed.situations, strict=False)):
            if situation is not None:
                self._choices.note(situation, token)
            if proposed.tokens[index : index + 1] != [token]:
                return

    def propose(self, most: int) -> Proposal | None:
        """Return the forced and likely tokens that come next."""
        if (matcher := self._matcher()) is None:
            return None
        state = matcher.state.deep_copy()
        self._proposed = tokens, times, _ = self._extension(state, matcher.mask, self._newest, most)
        return Proposal(tokens, GRAMMAR, times) if tokens else None

    def fitted(self, proposal: Proposal, most: int) -> Proposal | None:
        """Return another source's proposal without what the grammar forbids, and with the forced
        and likely tokens behind; None if its first token is forbidden, or ends the answer."""
        if (matcher := self._matcher()) is None:
            return proposal
        state = matcher.state.deep_copy()
        count = state.try_consume_tokens(proposal.tokens)
        if state.is_stopped():
            count = max(count - 1, 0)  # behind the end nothing is computed
        tokens = proposal.tokens[:count]
        if tokens and not state.is_stopped() and count < most:
            mask = compute_mask(state, len(matcher.mask))
            tokens += self._extension(state, mask, tokens[-1], most - count).tokens
        return proposal._replace(tokens=tokens, num_own=count) if tokens else None

    def _extension(self, state: "LLMatcher", mask: TokenMask, newest: int, most: int) -> _Extension:
        """Return the tokens behind a state, which is advanced; mask: of the first."""
        found = _Extension([], ALWAYS, [])
        while True:
            situation, token = _situation(newest, mask)
            times = ALWAYS
            if situation is not None:
                token, times = self._choices.likely(situation) or (None, 0)
            found.situations.append(situation)
            if token is None or len(found.tokens) == most:
                return found
            if not state.consume_token(token) or state.is_stopped():
                return found
            found.tokens.append(token)
            found = found._replace(times=min(found.times, times))
            mask, newest = compute_mask(state, len(mask)), token


def _situation(newest: int, mask: TokenMask) -> tuple[Situation | None, int | None]:
    """Return the situation if few tokens are allowed, and the token that is the only one."""
    indices = np.flatnonzero(mask)
    if not 0 < len(indices) <= MOST_ALLOWED:
        return None, None
    words = mask[indices].view(np.uint32)
    count = int(np.bitwise_count(words).sum())
    if count == 1:
        return None, 32 * int(indices[0]) + int(words[0]).bit_length() - 1
    return (newest, indices.tobytes(), words.tobytes()) if count <= MOST_ALLOWED else None, None
