"""FirstAnswers: the answers to the first rows of the input, whichever were finished first."""

from bisect import insort

from pagedrun.paged.job.progress.shown_answer import ShownAnswer

NUM_KEPT = 3


class FirstAnswers:
    """Keeps the answers to the NUM_KEPT first of all rows that it is given."""

    def __init__(self) -> None:
        self._kept: list[ShownAnswer] = []

    def add(self, answer: ShownAnswer) -> None:
        """Keep `answer` if its row comes before one that is kept."""
        if len(self._kept) < NUM_KEPT or answer.index < self._kept[-1].index:
            insort(self._kept, answer, key=lambda each: each.index)
            del self._kept[NUM_KEPT:]

    def kept(self) -> tuple[ShownAnswer, ...]:
        """Return them in the order of the input."""
        return tuple(self._kept)
