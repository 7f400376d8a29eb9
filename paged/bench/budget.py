"""Budget: seconds to spend, and which pieces of work fit into what is left of them."""

from collections.abc import Hashable, Mapping
from time import perf_counter
from typing import TypeVar

Piece = TypeVar("Piece", bound=Hashable)


class Budget:
    """Seconds from now on, and what a piece of work will take going by the largest one so far.

    One piece may take `most_at_once` of the seconds: the dearest must not leave nothing for others.
    """

    def __init__(self, seconds: float, most_at_once: float = 0.1) -> None:
        self.most_at_once = seconds * most_at_once
        self._until = perf_counter() + seconds
        self._largest = 0.0
        self._seconds = 0.0

    @property
    def left(self) -> float:
        """Seconds that are left; negative when it is overdrawn."""
        return self._until - perf_counter()

    def note(self, work: float, seconds: float) -> None:
        """Note what a piece of work took."""
        if work >= self._largest:
            self._largest, self._seconds = work, seconds

    def seconds_for(self, work: float) -> float:
        """Return the seconds that `work` will take, 0 as long as nothing has run."""
        return self._seconds * work / self._largest if self._largest else 0.0

    def too_much(self, work: Mapping[Piece, float]) -> dict[Piece, float]:
        """Return the seconds of those pieces that are more than what is left after the others."""
        skipped: dict[Piece, float] = {}
        left = self.left
        for piece, each in work.items():
            seconds = self.seconds_for(each)
            if seconds > min(left, self.most_at_once):
                skipped[piece] = seconds
            else:
                left -= seconds
        return skipped
