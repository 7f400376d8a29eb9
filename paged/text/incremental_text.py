"""Incremental decoding of the end of an answer's text."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what decoders put for bytes that are no character, or not yet
# No character has more bytes than this has tokens, so what is open for longer never becomes one.
_MAX_OPEN = 16
_MIN_CONTEXT = 4


class IncrementalText:
    """What was decoded is not decoded again, but for a few tokens that the next ones need before
    them: a decoder may drop the space at the beginning of what it is given. Tokens that end within
    a character stay open until the rest of it comes.
    """

    def __init__(self, decode: Callable[[list[int]], str], num_kept: int) -> None:
        """Keep at least the last `num_kept` characters of the text."""
        self._decode = decode
        self._num_kept = num_kept
        self._kept = ""  # the end of the text of tokens that are closed
        self._context: list[int] = []  # the last of these tokens
        self._context_text = ""
        self._open: list[int] = []
        self.num_tokens = 0

    @property
    def is_open(self) -> bool:
        """Whether the end of the text may still change: the last tokens may be within a character,
        or have no text of their own."""
        return bool(self._open)

    def feed(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the end of the whole text, everything new and `num_kept` before."""
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
        """Return a few of the last tokens, which begin where a character does."""
        last = len(token_ids) - _MIN_CONTEXT
        for start in range(last, max(last - _MIN_CONTEXT, 0), -1):
            if REPLACEMENT not in self._decode(token_ids[start:]):
                return token_ids[start:]
        return token_ids
