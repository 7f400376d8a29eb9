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

    `prefixes` is the tree of their common prefixes; `plan_s` the time of planning, in seconds.
    """

    plan: P_co
    refused: Seq[Completion]
    prefixes: PrefixNodes
    plan_s: float

    def unrun(self) -> Iterator[Completion]:
        """Yield the completions of requests that do not run: refused, or answered by an earlier
        run, whose answers are read one by one."""
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
    """Reads windows of `items`; `is_last`: no other window follows.

    `num_bytes_read` returns the bytes of the items read so far. One item is read ahead of each
    window, to detect the last one. Errors of `items` are passed on.
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
        """Return the items of the next window; none for an empty input."""
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
    """End of the items, with the error that ended them, if any."""

    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


class BackgroundPlanner(Iterator[T]):
    """Iterator over `first` and the items of `rest`, each made in a thread while the one before is
    used.

    The thread starts when `first` is taken, and is at most one item ahead: the item being made, or
    waiting to be taken. Taking an item that is not ready waits for it, so timing affects no result.
    Errors of `rest` are raised there.
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
                del made  # its traceback holds this frame
        raise StopIteration

    @property
    def is_ready(self) -> bool:
        """True if the next item, or the end, can be taken without waiting."""
        return self._first is not None or self._is_over or not self._made.empty()

    def close(self) -> None:
        """Stop making items, and wait for the end of the thread. `rest` has to end.

        The thread itself, which may be the one that collects garbage, does not wait.
        """
        self._is_over = self._is_closed = True
        self._wanted.release()
        if self._thread.ident is not None and self._thread is not current_thread():
            self._thread.join()
        self._made = SimpleQueue()  # an error in it would keep frames alive that hold the thread

    def _make(self) -> None:
        try:
            while self._wanted.acquire() and not self._is_closed:
                self._made.put(_Item(next(self._rest)))
        except StopIteration:
            self._made.put(_End(None))
        except BaseException as error:
            self._made.put(_End(error))


class WindowQueue(Iterator[PlannedWindow[PlannedPart]]):
    """Queue of windows planned in another thread."""

    def __init__(self, before_wait: Callable[[], None], on_taken: Callable[[], None]) -> None:
        """before_wait, on_taken: called in the consumer's thread, before it waits for a window and
        after it has taken one."""
        self._before_wait = before_wait
        self._on_taken = on_taken
        self._queue: SimpleQueue[PlannedWindow[PlannedPart] | None] = SimpleQueue()
        self._next: PlannedWindow[PlannedPart] | None = None
        self._is_over = False

    def put(self, window: PlannedWindow[PlannedPart]) -> None:
        """Add a window at the end."""
        self._queue.put(window)

    def end(self) -> None:
        """Mark the end of the windows."""
        self._queue.put(None)

    def is_ready(self, *, wait: bool) -> bool:
        """Return whether a window, or the end, can be taken without waiting. wait: until it can."""
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
    """Return whether the next window can be taken now; always true but for a queue."""
    return not isinstance(windows, WindowQueue) or windows.is_ready(wait=wait)
