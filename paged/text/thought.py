"""Thought: how far the thought at the beginning of an answer has come."""

from collections.abc import Callable, Sequence

from pagedrun.paged.text.incremental_text import IncrementalText
from pagedrun.paged.text.reasoning_tags import ReasoningTags


class Thought:
    """Follows the tokens of an answer until its thought ends, or it turns out to have none.

    `forced` is the token that has to come next, None if any may: behind `budget` tokens of the
    thought, those of its opening tag not counted, these are the `closing` ones.
    """

    def __init__(
        self,
        tags: ReasoningTags,
        closing: Sequence[int],
        decode: Callable[[list[int]], str],
        *,
        budget: int,
        is_open: bool,
    ) -> None:
        """is_open: whether the prompt has the opening tag."""
        self._tags = tags
        self._closing = closing
        self._budget = budget
        self._is_open = is_open
        self._num_tokens = 0
        self._num_forced = 0
        self._text = IncrementalText(decode, len(tags.opening) + len(tags.closing))
        self.forced: int | None = None
        if is_open and not budget:
            self.forced = closing[0]

    def goes_on_with(self, token_id: int) -> bool:
        """Take the next token; return whether the thought goes on, or may still begin."""
        text = self._text.feed([token_id])
        if self._is_open:
            self._num_tokens += 1
        else:
            beginning = text.lstrip()
            self._is_open = beginning.startswith(self._tags.opening)
            if not self._is_open:
                return self._tags.opening.startswith(beginning)
        return self._tags.closing not in text and self._spend()

    def _spend(self) -> bool:
        """Set what is forced; return whether the closing tag is still to come."""
        if self.forced is not None:
            self._num_forced += 1
        elif self._num_tokens < self._budget:
            return True
        if self._num_forced == len(self._closing):
            return False
        self.forced = self._closing[self._num_forced]
        return True
