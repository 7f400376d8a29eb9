"""Arrivals: the requests that are to run and have no sequence yet."""

from collections import deque
from collections.abc import Iterable, Iterator

from pagedrun.paged.values.planned_request import PlannedRequest


class Arrivals:
    """Those of the plan in its order, one by one, behind those that run `again`."""

    def __init__(self) -> None:
        self.again: deque[PlannedRequest] = deque()  # to draw more samples of, before new ones
        self.num_planned = 0  # requests that were added and not looked at yet
        self._planned: Iterator[PlannedRequest] = iter(())

    def add(self, planned: Iterable[PlannedRequest], count: int) -> None:
        """Take the next `count` requests of the plan, when those before are out."""
        assert not self.num_planned, "the requests before are not out"
        self._planned = iter(planned)
        self.num_planned = count

    def end_plan(self) -> None:
        """Forget those of the plan."""
        self._planned, self.num_planned = iter(()), 0

    def next(self) -> PlannedRequest | None:
        """Return the next request, None if there is none."""
        if self.again:
            return self.again.popleft()
        if not self.num_planned:
            return None
        planned, self.num_planned = next(self._planned), self.num_planned - 1
        if not self.num_planned:
            self._planned = iter(())  # lets go of the plan
        return planned
