"""JobInterrupted and SignalGuard: a signal ends the job between two rows, never inside one."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from pagedrun.paged.job.control.watchdog import (
    DEADLINE,
    SIGNALS,
    Ward,
    Watchdog,
    exit_status_of,
    stopped_by,
)


class JobInterrupted(BaseException):
    """The user, the system or the job's deadline asked it to stop; not an `Exception`, so nothing
    swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(stopped_by(signum))
        self.signum = signum


class SignalGuard:
    """While entered, SIGINT, SIGTERM and SIGHUP raise `JobInterrupted` in the main thread.

    The signal waits while `hold()` is active. A second one kills the process at once. Outside the
    main thread, where Python delivers no signals, entering changes nothing.

    With a `watchdog` the guard is that of the whole process. A signal ends it on the spot while
    nothing is written that could be lost: what is raised in the middle of an import or a compiler
    is often swallowed there. And the watchdog ends it if the main thread does not come to it, in a
    long native call for example.

    `began` is when the guard was made, on the clock of `time.monotonic`: for that of a process,
    about when that began.
    """

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self.began = time.monotonic()
        self.interruption: JobInterrupted | None = None  # raised, or about to be
        self._watchdog = watchdog
        self._previous: dict[signal.Signals, Any] = {}
        self._num_holds = 0
        self._pending: JobInterrupted | None = None

    def __enter__(self) -> "SignalGuard":
        if threading.current_thread() is threading.main_thread():
            if self._watchdog is not None:
                self._watchdog.start()
            for each in SIGNALS:
                if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup sets it
                    self._previous[each] = signal.signal(each, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end_when_done()
        for each, handler in self._previous.items():
            signal.signal(each, handler)
        self._previous.clear()
        if self._watchdog is not None:
            self._watchdog.stop()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let what is inside finish before a signal is acted upon."""
        self._num_holds += 1
        try:
            yield
        finally:
            self._num_holds -= 1
            if self._num_holds == 0 and self._pending is not None:
                pending, self._pending = self._pending, None
                self._stop(pending)

    def take_word(self) -> bool:
        """Return whether nobody else has said yet why the process ends; see `Watchdog`."""
        return self._watchdog is None or self._watchdog.take_word()

    def look_after(self, ward: Ward) -> None:
        """Let the watchdog, if there is one, look after `ward` from now on."""
        if self._watchdog is not None:
            self._watchdog.look_after(ward)

    def end_at(self, deadline: float) -> None:
        """Let a deadline, on the clock of `time.monotonic`, end the job as a signal does."""
        if threading.current_thread() is threading.main_thread():
            self._previous[DEADLINE] = signal.signal(DEADLINE, self._on_signal)
            left = deadline - time.monotonic()
            if left <= 0:  # of which a timer would make no end at all
                self._on_signal(DEADLINE, None)
            else:
                signal.setitimer(signal.ITIMER_REAL, left)

    def end_when_done(self) -> None:
        """Forget the deadline, if there is one."""
        if DEADLINE in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(DEADLINE, self._previous.pop(DEADLINE))

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.end_when_done()  # the timer must not end what another signal has begun to
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
        self.interruption = JobInterrupted(signum)
        if self._num_holds:
            self._pending = self.interruption
        else:
            self._stop(self.interruption)

    def _stop(self, interruption: JobInterrupted) -> None:
        if self._watchdog is not None and not self._watchdog.has_something_to_lose:
            self._watchdog.end_stopped(interruption.signum)
        raise interruption


def exit_status(interruption: JobInterrupted) -> int:
    """Return what shells expect of a process that a signal ended."""
    return exit_status_of(interruption.signum)
