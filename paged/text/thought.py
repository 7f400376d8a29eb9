"""Thought: how far the thought at the beginning of an answer has come."""

from collections.abc import Callable
from typing import Protocol

from pagedrun.paged.text.incremental_text import REPLACEMENT, IncrementalText
from pagedrun.paged.text.reasoning_tags import ReasoningTags


class Thinking(Protocol):
    """What comes before an answer, followed token by token until it ends.

    `is_open` and `is_over` are both false while it may begin.
    """

    @property
    def tags(self) -> ReasoningTags | None:
        """What marks it; None where that are tokens of their own."""
        ...

    @property
    def end(self) -> str:
        """The end of what was taken, at least as much as both tags have characters."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the next token belongs to it, or to what closes it."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or can no longer begin."""
        ...

    @property
    def is_counted(self) -> bool:
        """Whether the next token is one of those that a budget counts."""
        ...

    def take(self, token_id: int) -> None:
        """Go on by the next token of the answer."""
        ...


class Thought:
    """A thought between tags at the beginning of an answer, or none; see `Thinking`."""

    def __init__(
        self, tags: ReasoningTags, decode: Callable[[list[int]], str], *, is_open: bool
    ) -> None:
        """is_open: whether the prompt has the opening tag."""
        self.tags = tags
        self.is_open = is_open
        self.is_over = False
        self.end = ""
        self._text = IncrementalText(decode, len(tags.opening) + len(tags.closing))

    @property
    def is_counted(self) -> bool:
        """Whether the next token belongs to it: the opening tag does not."""
        return self.is_open

    def take(self, token_id: int) -> None:
        """Go on by the next token of the answer."""
        self.end = self._text.feed([token_id])
        if not self.is_open:
            beginning = self.end.lstrip().rstrip(REPLACEMENT)  # of a character not all there
            self.is_open = beginning.startswith(self.tags.opening)
            self.is_over = not (self.is_open or self.tags.opening.startswith(beginning))
        if self.is_open and self.tags.closing in self.end:
            self.is_open, self.is_over = False, True
