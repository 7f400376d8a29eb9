"""Ahead: a thread that reads, tokenises and plans while what it made before is being run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Semaphore, Thread, current_thread
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    """What comes after the last item: the error that ended them, if any."""

    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


class Ahead(Iterator[T]):
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
