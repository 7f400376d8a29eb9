"""Turns: partitions and copies take turns, one at a time, in an order that a test chooses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from threading import Event, Thread, current_thread

COPY = "copy"  # the name of a copy under way; partitions are numbers, the one that copies is last


class Fault(Exception):
    """What a GPU would have hung on, or silently done wrong."""


@dataclass(slots=True)
class Turns:
    """Runs partitions as threads of which one goes on at a time, until its next operation.

    first: names in the order in which they get their turn, whenever they can go on. random: which
    of the copies lands, else the first that was begun; and who is next, where `first` is empty.
    Both are the same in every run.
    """

    first: tuple[int | str, ...] = ()
    random: Random | None = None
    copies: list[Callable[[], None]] = field(default_factory=list)
    _partitions: list["_Partition"] = field(default_factory=list)

    @property
    def current(self) -> int:
        """The partition whose turn it is, -1 outside of them."""
        name = current_thread().name
        return int(name) if self._partitions and name.isdigit() else -1

    def run(self, functions: Iterable[Callable[[], None]]) -> None:
        """Run a partition for each function until all are done and all copies have landed."""
        self._partitions = [_Partition(i, each) for i, each in enumerate(functions)]
        try:
            while self._step():
                pass
        finally:
            for partition in self._partitions:
                partition.end()
            self._partitions = []

    def pause(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let others go on, and this partition when it is `ready` and chosen."""
        if self.current < 0:
            return
        partition = self._partitions[self.current]
        partition.ready = ready
        # Where the order is fixed, a partition whose turn it is again need not be waited for.
        if not self.first or self._choose(self._able()) != partition.number:
            partition.pause()

    def _able(self) -> list[int | str]:
        able: list[int | str] = [COPY] * bool(self.copies)
        return able + [each.number for each in self._partitions if each.ready()]

    def _step(self) -> bool:
        able = self._able()
        if not able:
            alive = [each for each in self._partitions if not each.is_done]
            if alive:
                waiting = ", ".join(str(each.number) for each in alive)
                raise Fault(f"partitions {waiting} wait for ever")
            return False
        name = self._choose(able)
        if name == COPY:  # copies may land in any order
            which = self.random.randrange(len(self.copies)) if self.random else 0
            self.copies.pop(which)()
        else:
            assert isinstance(name, int), "all have a place in the order"
            self._partitions[name].go_on()
        return True

    def _choose(self, able: list[int | str]) -> int | str | None:
        if self.random is not None and not self.first:
            return self.random.choice(able)
        return next((name for name in self.first if name in able), None)


class _Partition:
    """A thread that runs only between `go_on` and its next `pause`."""

    def __init__(self, number: int, function: Callable[[], None]) -> None:
        self.number, self.is_done = number, False
        self.ready: Callable[[], bool] = lambda: True
        self._function, self._error = function, None
        self._may_go, self._has_paused = Event(), Event()
        self._is_over = False
        self._thread = Thread(target=self._run, name=str(number), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._wait_for_turn()
        try:
            self._function()
        except BaseException as error:
            self._error = error  # type: ignore[assignment]
        self.is_done, self.ready = True, lambda: False
        self._has_paused.set()

    def _wait_for_turn(self) -> None:
        self._may_go.wait()
        self._may_go.clear()

    def pause(self) -> None:
        self._has_paused.set()
        self._wait_for_turn()
        if self._is_over:
            raise Fault("ended")

    def go_on(self) -> None:
        self._has_paused.clear()
        self._may_go.set()
        self._has_paused.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End the thread, wherever it waits."""
        self._is_over = True
        while not self.is_done:
            self._has_paused.clear()
            self._may_go.set()
            self._has_paused.wait()
        self._thread.join()
