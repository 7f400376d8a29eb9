"""Thought: how far the thought at the beginning of an answer has come."""

from collections.abc import Callable

from pagedrun.paged.text.incremental_text import REPLACEMENT, IncrementalText
from pagedrun.paged.text.reasoning_tags import ReasoningTags


class Thought:
    """Follows the tokens of an answer until its thought ends, or it turns out to have none.

    `is_open` says whether the next token belongs to it, or to its closing tag. `is_over` says that
    it has ended, or can no longer begin. Both are false while one may begin.
    """

    def __init__(
        self, tags: ReasoningTags, decode: Callable[[list[int]], str], *, is_open: bool
    ) -> None:
        """is_open: whether the prompt has the opening tag."""
        self.tags = tags
        self.is_open = is_open
        self.is_over = False
        self.end = ""
        """The end of what was taken, at least as much as both tags have characters."""
        self._text = IncrementalText(decode, len(tags.opening) + len(tags.closing))

    def take(self, token_id: int) -> None:
        """Go on by the next token of the answer."""
        self.end = self._text.feed([token_id])
        if not self.is_open:
            beginning = self.end.lstrip().rstrip(REPLACEMENT)  # of a character not all there
            self.is_open = beginning.startswith(self.tags.opening)
            self.is_over = not (self.is_open or self.tags.opening.startswith(beginning))
        if self.is_open and self.tags.closing in self.end:
            self.is_open, self.is_over = False, True
