"""Incremental decoding of the end of an answer's text."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # decoded from invalid or incomplete characters
# No character has more bytes than this, so longer open sequences never become one.
_MAX_OPEN = 16
_MIN_CONTEXT = 4


class IncrementalText:
    """Decoder of growing text: only new tokens and a few before them are decoded.

    Those are needed because a decoder may drop the space at the beginning of its input. Tokens that
    end within a character stay open until it is complete.
    """

    def __init__(self, decode: Callable[[list[int]], str], num_kept: int) -> None:
        """Keep at least the last `num_kept` characters of the text."""
        self._decode = decode
        self._num_kept = num_kept
        self._kept = ""  # end of the text of closed tokens
        self._context: list[int] = []  # the last closed tokens
        self._context_text = ""
        self._open: list[int] = []
        self.num_tokens = 0

    @property
    def is_open(self) -> bool:
        """True if the end of the text may change: the last tokens are within a character, or
        without text.
        """
        return bool(self._open)

    def feed(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the end of the text: all new characters and `num_kept` before them."""
        self.num_tokens += len(token_ids)
        self._open += token_ids
        text = self._decode([*self._context, *self._open])
        new = text[len(self._context_text) :]
        end = self._kept + new
        if (new and not new.endswith(REPLACEMENT)) or len(self._open) > _MAX_OPEN:
            self._close(end)
        return end

    def _close(self, end: str) -> None:
        self._kept = end[max(len(end) - self._num_kept, 0) :]
        self._context = self._last_whole(self._open)
        self._context_text = self._decode(self._context)
        self._open = []

    def _last_whole(self, token_ids: list[int]) -> list[int]:
        """Return a few of the last tokens, from the start of a character."""
        last = len(token_ids) - _MIN_CONTEXT
        for start in range(last, max(last - _MIN_CONTEXT, 0), -1):
            if REPLACEMENT not in self._decode(token_ids[start:]):
                return token_ids[start:]
        return token_ids
