"""ThoughtBudget: how many tokens a thought has left, and what closes it then."""

from collections.abc import Sequence

from pagedrun.paged.text.thought import Thinking


class ThoughtBudget:
    """`forced` is the token that has to come next, None if any may: behind `budget` tokens of the
    thought, those of its opening tag not counted, these are the `closing` ones.
    """

    def __init__(self, thought: Thinking, closing: Sequence[int], budget: int) -> None:
        self._thought = thought
        self._closing = closing
        self._num_left = budget
        self._num_forced = 0
        self.forced: int | None = None
        self._force_closing()

    def take(self, token_id: int) -> bool:
        """Take the next token; return whether the thought goes on, or may still begin."""
        if self.forced is not None:
            self._num_forced += 1
        elif self._thought.is_counted:
            self._num_left -= 1
        self._thought.take(token_id)
        if self._thought.is_over or self._num_forced == len(self._closing):
            return False
        self._force_closing()
        return True

    def _force_closing(self) -> None:
        if self._num_forced or (self._thought.is_counted and not self._num_left):
            self.forced = self._closing[self._num_forced]
