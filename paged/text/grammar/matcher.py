"""GrammarMatcher: where one answer is in its grammar."""

from typing import TYPE_CHECKING

import numpy as np

from pagedrun.paged.text.grammar.compiler import CompiledGrammar, TokenMask, compute_mask

if TYPE_CHECKING:
    from llguidance import LLMatcher

_ENDS = ("NoExtension", "EndOfSentence")


class GrammarMatcher:
    """Takes an answer's tokens one by one; `mask` says which may come next.

    The mask is of what was taken when it was filled last, by `MaskFiller`. `error` is why no token
    can be allowed any more, empty if one can.

    It begins as one of many that share what they know of the grammar. Where that comes to a limit,
    it starts over with a grammar of its own: whether an answer fails depends on it alone.
    """

    __slots__ = ("_grammar", "_is_alone", "_state", "_tokens", "error", "mask")

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._state: LLMatcher | None = grammar.start.deep_copy()
        self._is_alone = False
        self._tokens: list[int] = []
        self.mask = grammar.first_mask
        self.error = ""
        self._note_end()

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""
        return self._state is None and not self.error

    @property
    def state(self) -> "LLMatcher":
        """What llguidance keeps of it; there is none behind the end."""
        assert self._state is not None, "an answer goes on behind its end"
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether no token can be taken any more."""
        return self._state is None

    def take(self, token: int) -> None:
        """Go on by a token of the answer."""
        self._tokens.append(token)
        self.state.consume_token(token)
        self._note_end()

    def forced_token(self) -> int | None:
        """Return the one token that may come next; None if there are several.

        It is the only bit of the mask, so that sampling would give no other.
        """
        if self._state is None or not self._state.compute_ff_tokens():
            return None  # most often, and known without the mask
        self.compute_mask()
        (words,) = np.nonzero(self.mask)
        if len(words) != 1 or self.error:
            return None
        bits = int(self.mask[words[0]]) & 0xFFFFFFFF
        return None if bits & (bits - 1) else 32 * int(words[0]) + bits.bit_length() - 1

    def compute_mask(self) -> None:
        """Compute the mask of this place, in the caller's thread."""
        self.fill(compute_mask(self.state, len(self.mask)))

    def fill(self, mask: TokenMask) -> None:
        """Keep the mask that was computed for this place in the grammar."""
        self.mask = mask
        self._note_end()

    def _note_end(self) -> None:
        """Let go of the grammar where it is of no use any more."""
        if self._state is None or not self._state.is_stopped():
            return
        reason = self._state.stop_reason()
        if reason in _ENDS:
            self._state = None
        elif self._is_alone:
            self.error = f"{reason} {self._state.get_error()}".strip()
            self.mask = np.zeros_like(self.mask)
            self._state = None
        else:
            self._start_over()

    def _start_over(self) -> None:
        """Take all tokens again, with a grammar that is shared with no other answer.

        With a mask before each, as if it had never been shared.
        """
        self._is_alone = True
        self._state = state = self._grammar.fresh()
        width = len(self.mask)
        for token in self._tokens:
            state.compute_bitmask()
            state.consume_token(token)
        if not state.is_stopped():
            self.mask = compute_mask(state, width)
        self._note_end()
