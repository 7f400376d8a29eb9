"""LastAdmission: from when on a run begins no more rows, as they would not be finished in time.

A row that is cut off at the deadline is lost, and the long ones are lost more often: the rows done
would not be like all rows. So the last ones begin while there is time for them.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pagedrun.paged.values.request import Request

MOST_DURATIONS = 256  # of the rows that finished last
QUANTILE = 0.9  # of these are shorter than what is left for the last rows


class ByRow(Protocol):
    """What takes note of each row that a run begins, and of its end."""

    def begin(self, request: Request) -> None:
        """Take note that a request is let in."""

    def end(self, row: int) -> None:
        """Take note that a request, by its index, is answered."""


class LastAdmission:
    """Learns how long rows take, from those that are finished.

    Of a run without a deadline (`at` is None) it says nothing.
    """

    def __init__(self, at: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """at: when the run ends, on `clock`, in seconds."""
        self._at = at
        self._clock = clock
        self._begun: dict[int, float] = {}
        self._durations: deque[float] = deque(maxlen=MOST_DURATIONS)
        self._needed_s = 0.0  # by a row that begins now
        self._is_learnt = True

    def begin(self, request: Request) -> None:
        """Take note that a request is let in."""
        if self._at is not None:
            self._begun[request.index] = self._clock()

    def end(self, row: int) -> None:
        """Take note that a request is answered."""
        began = self._begun.pop(row, None)
        if began is not None:
            self._durations.append(self._clock() - began)
            self._is_learnt = False

    @property
    def is_over(self) -> bool:
        """Whether too little time is left for another row."""
        if self._at is None:
            return False
        if not self._is_learnt:
            ranked = sorted(self._durations)
            self._needed_s = ranked[int(QUANTILE * (len(ranked) - 1))]
            self._is_learnt = True
        return self._clock() + self._needed_s >= self._at
