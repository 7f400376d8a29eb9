"""GrammarMatcher: where one answer is in its grammar."""

from typing import TYPE_CHECKING

import numpy as np

from pagedrun.paged.text.grammar.compiler import CompiledGrammar, TokenMask, compute_mask

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarMatcher:
    """Takes an answer's tokens one by one; `mask` says which may come next.

    The mask is of what was taken when it was filled last, by `MaskFiller`. `error` is why no token
    can be allowed any more, empty if one can.
    """

    __slots__ = ("_state", "error", "mask")

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._state: LLMatcher | None = grammar.start.deep_copy()
        self.mask = grammar.first_mask
        self.error = ""

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
        self.state.consume_token(token)
        self._note_end()

    def forced_token(self) -> int | None:
        """Return the one token that may come next; None if there are several.

        It is the only bit of the mask, so that sampling would give no other.
        """
        if self._state is None or not self._state.compute_ff_tokens():
            return None  # most often, and known without the mask
        self.fill(compute_mask(self._state, len(self.mask)))
        (words,) = np.nonzero(self.mask)
        if len(words) != 1 or self.error:
            return None
        bits = int(self.mask[words[0]]) & 0xFFFFFFFF
        return None if bits & (bits - 1) else 32 * int(words[0]) + bits.bit_length() - 1

    def fill(self, mask: TokenMask) -> None:
        """Keep the mask that was computed for this place in the grammar."""
        self.mask = mask
        self._note_end()

    def _note_end(self) -> None:
        """Let go of the grammar where it is of no use any more."""
        if self._state is None or not self._state.is_stopped():
            return
        reason = self._state.stop_reason()
        if reason not in ("NoExtension", "EndOfSentence"):
            self.error = f"{reason} {self._state.get_error()}"
            self.mask = np.zeros_like(self.mask)
        self._state = None
