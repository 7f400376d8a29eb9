"""StreamedAnswer: an answer's text while its tokens come."""

from collections.abc import Iterable, Sequence

from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.channel_thought import ChannelThought
from pagedrun.paged.text.incremental_text import IncrementalText
from pagedrun.paged.values.request import Request


class StreamedAnswer:
    """What is certain of an answer so far: `thought` and `text` only grow.

    Held back is what later tokens may change: a character that is not all there, the beginning of a
    stop string or of the tag that ends a thought, and any text while there may be a thought before
    it. Whoever decides when the answer ends feeds no token that ends it.
    """

    def __init__(self, texts: AnswerText, request: Request) -> None:
        self._texts = texts
        self._request = request
        self._thinking = texts.thought(request)
        self._decoded = IncrementalText(texts.decoder(request.params), 0)
        self._whole = ""
        self.num_tokens = 0
        self.thought = ""
        self.text = ""

    def feed(self, token_ids: Sequence[int]) -> None:
        """Add tokens."""
        self.num_tokens += len(token_ids)
        shown = [token for token in token_ids if self._is_shown(token)]
        if not shown:
            return
        piece = self._decoded.feed(shown)
        if not self._decoded.is_open:
            self._whole += piece
            self._settle()

    def _is_shown(self, token: int) -> bool:
        """Take note of a token; return whether it is one of the text, thought and tags included.

        In channels only the answer itself is.
        """
        thinking = self._thinking
        if thinking is None:
            return True
        was_over = thinking.is_over
        if not was_over or isinstance(thinking, ChannelThought):
            thinking.take(token)
        return not isinstance(thinking, ChannelThought) or (was_over and thinking.is_over)

    def _settle(self) -> None:
        thinking = self._thinking
        certain = _before_beginning_of(self._request.params.stop, self._whole)
        if thinking is None or thinking.tags is None:
            self.text = certain
        elif thinking.is_over:
            self._split(certain)
        elif thinking.is_open:
            self._split(_before_beginning_of([thinking.tags.closing], certain))

    def _split(self, certain: str) -> None:
        thought, self.text = self._texts.split(self._request, [], certain)
        self.thought = thought or ""


def _before_beginning_of(endings: Iterable[str], text: str) -> str:
    """Return a text without the longest beginning of one of these that it ends with."""
    longest = max(
        (
            length
            for ending in endings
            for length in range(1, len(ending))
            if text.endswith(ending[:length])
        ),
        default=0,
    )
    return text[: len(text) - longest]
