"""PlannedFeed: planned windows that come from elsewhere, at times that nobody here decides."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue

from pagedrun.paged.planning.planned_window import PlannedWindow
from pagedrun.paged.planning.window_plan import WindowPlan


class PlannedFeed(Iterator[PlannedWindow[WindowPlan]]):
    """A queue of windows: one thread puts them in, the one that runs them takes them out."""

    def __init__(self, before_wait: Callable[[], None], on_taken: Callable[[], None]) -> None:
        """Both are called in the thread that takes windows: before it waits for one, and when it
        has taken one."""
        self._before_wait = before_wait
        self._on_taken = on_taken
        self._queue: SimpleQueue[PlannedWindow[WindowPlan] | None] = SimpleQueue()
        self._next: PlannedWindow[WindowPlan] | None = None
        self._is_over = False

    def put(self, window: PlannedWindow[WindowPlan]) -> None:
        """Add a window behind those that were put."""
        self._queue.put(window)

    def end(self) -> None:
        """Say that none follows those that were put."""
        self._queue.put(None)

    def is_ready(self, *, wait: bool) -> bool:
        """Return whether there is a window, or it is known that there will be none.

        wait: until it is so.
        """
        if self._next is None and not self._is_over and (wait or not self._queue.empty()):
            if self._queue.empty():
                self._before_wait()
            self._next = self._queue.get()
            self._is_over = self._next is None
        return self._next is not None or self._is_over

    def __next__(self) -> PlannedWindow[WindowPlan]:
        self.is_ready(wait=True)
        window, self._next = self._next, None
        if window is None:
            raise StopIteration
        self._on_taken()
        return window


def is_ready(windows: Iterator[PlannedWindow[WindowPlan]], *, wait: bool) -> bool:
    """Return whether to take the next window now; of others than a feed, always."""
    return not isinstance(windows, PlannedFeed) or windows.is_ready(wait=wait)
