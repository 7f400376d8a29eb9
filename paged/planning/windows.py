"""Windows: pieces of a long input that are planned and run one after another.

`Windows` cuts an input that does not fit into memory. `PlannedWindow` holds the plan of one
window. `BackgroundPlanner` reads, tokenizes and plans the next window in a thread while one runs,
and `WindowQueue` is a queue of windows planned in another thread.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Semaphore, Thread, current_thread
from typing import Generic, TypeVar

from pagedrun.paged.metrics.snapshot import PrefixNodes
from pagedrun.paged.planning.plan_part import PlannedPart
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.request import Completion

P_co = TypeVar("P_co", bound=PlannedPart, covariant=True)


@dataclass(frozen=True, slots=True)
class PlannedWindow(Generic[P_co]):
    """Requests that were planned together, and those that cannot be run.

    `prefixes` is the tree of what they share; `plan_s` is how long it took to plan them, in
    seconds.
    """

    plan: P_co
    refused: Seq[Completion]
    prefixes: PrefixNodes
    plan_s: float

    def unrun(self) -> Iterator[Completion]:
        """Yield the completions of those that do not run: refused, or answered by an earlier run,
        whose answers are read one by one.
        """
        yield from self.refused
        yield from (answer.completion(request) for request, answer in self.plan.copied)

    def __len__(self) -> int:
        return (
            len(self.plan)
            + len(self.plan.too_large)
            + len(self.plan.copied)
            + self.plan.duplicates.num_duplicates
            + len(self.refused)
        )


T = TypeVar("T")


class Windows(Generic[T]):
    """Reads one window after the other from `items`; `is_last` says whether there is another one.

    `num_bytes_read` tells how many bytes the items take that were read so far. One item is read
    ahead of each window, which tells whether there is another. What `items` raises is raised.
    """

    def __init__(
        self, items: Iterable[T], size: WindowSize, num_bytes_read: Callable[[], int]
    ) -> None:
        self._items = iter(items)
        self._size = size
        self._num_bytes_read = num_bytes_read
        self._ahead: list[T] = []
        self.is_last = False

    def read(self) -> list[T]:
        """Return the items of the next window; none if there never were any."""
        begin, size = self._num_bytes_read(), self._size
        window, self._ahead = self._ahead, []
        for item in self._items:
            is_full = len(window) >= size.rows or self._num_bytes_read() - begin > size.num_bytes
            if window and is_full:
                self._ahead = [item]
                return window
            window.append(item)
        self.is_last = True
        return window


@dataclass(frozen=True, slots=True)
class _End:
    """What comes after the last item: the error that ended them, if any."""

    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


class BackgroundPlanner(Iterator[T]):
    """The item `first`, then those of `rest`, each made in a thread while the one before is used.

    The thread begins when `first` is taken, and is never more than one item ahead: what it may
    hold is the item that it makes, or that waits to be taken. Whoever takes an item that is not
    made yet waits for it, so nothing depends on when it was. What `rest` raises is raised there.
    """

    def __init__(self, first: T, rest: Iterable[T]) -> None:
        self._first: _Item[T] | None = _Item(first)
        self._rest = iter(rest)
        self._made: SimpleQueue[_Item[T] | _End] = SimpleQueue()
        self._wanted = Semaphore(0)  # one for each item that was taken
        self._is_closed = False
        self._is_over = False
        self._thread = Thread(target=self._make, name="planner", daemon=True)

    def __next__(self) -> T:
        if self._is_over:
            raise StopIteration
        made: _Item[T] | _End
        if self._first is not None:
            made, self._first = self._first, None
            self._thread.start()
        else:
            made = self._made.get()  # a signal's handler runs meanwhile
        if isinstance(made, _Item):
            self._wanted.release()
            return made.value
        self._is_over = True
        if made.error is not None:
            try:
                raise made.error
            finally:
                del made  # its frames hold this one
        raise StopIteration

    @property
    def is_ready(self) -> bool:
        """Whether the next item is there, or it is known that there is none."""
        return self._first is not None or self._is_over or not self._made.empty()

    def close(self) -> None:
        """Make nothing more, and wait for the end of the thread. `rest` has to come to an end.

        The thread itself, which may be the one that collects garbage, does not wait.
        """
        self._is_over = self._is_closed = True
        self._wanted.release()
        if self._thread.ident is not None and self._thread is not current_thread():
            self._thread.join()
        self._made = SimpleQueue()  # an error in it would hold its frames, and these the thread

    def _make(self) -> None:
        try:
            while self._wanted.acquire() and not self._is_closed:
                self._made.put(_Item(next(self._rest)))
        except StopIteration:
            self._made.put(_End(None))
        except BaseException as error:
            self._made.put(_End(error))


class WindowQueue(Iterator[PlannedWindow[PlannedPart]]):
    """A queue of windows: one thread puts them in, the one that runs them takes them out."""

    def __init__(self, before_wait: Callable[[], None], on_taken: Callable[[], None]) -> None:
        """Both are called in the thread that takes windows: before it waits for one, and when it
        has taken one."""
        self._before_wait = before_wait
        self._on_taken = on_taken
        self._queue: SimpleQueue[PlannedWindow[PlannedPart] | None] = SimpleQueue()
        self._next: PlannedWindow[PlannedPart] | None = None
        self._is_over = False

    def put(self, window: PlannedWindow[PlannedPart]) -> None:
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

    def __next__(self) -> PlannedWindow[PlannedPart]:
        self.is_ready(wait=True)
        window, self._next = self._next, None
        if window is None:
            raise StopIteration
        self._on_taken()
        return window


def is_ready(windows: Iterator[PlannedWindow[PlannedPart]], *, wait: bool) -> bool:
    """Return whether to take the next window now; of others than a feed, always."""
    return not isinstance(windows, WindowQueue) or windows.is_ready(wait=wait)
