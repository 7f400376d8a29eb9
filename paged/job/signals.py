"""JobInterrupted and SignalGuard: a signal ends the job between two rows, never inside one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class JobInterrupted(BaseException):
    """The user or the system asked the job to stop; not an `Exception`, so nothing swallows it."""

    def __init__(self, signum: int) -> None:
        self.signal_name = signal.Signals(signum).name
        super().__init__(f"stopped by {self.signal_name}")
        self.signum = signum


class SignalGuard:
    """While entered, SIGINT, SIGTERM and SIGHUP raise `JobInterrupted` in the main thread.

    The signal waits while `hold()` is active. A second one kills the process at once. Outside the
    main thread, where Python delivers no signals, entering changes nothing.
    """

    def __init__(self) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._num_holds = 0
        self._pending: int | None = None

    def __enter__(self) -> "SignalGuard":
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup sets it
                    self._previous[each] = signal.signal(each, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
        self._previous.clear()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let what is inside finish before a signal is acted upon."""
        self._num_holds += 1
        try:
            yield
        finally:
            self._num_holds -= 1
            if self._num_holds == 0 and self._pending is not None:
                signum, self._pending = self._pending, None
                raise JobInterrupted(signum)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
        if self._num_holds:
            self._pending = signum
        else:
            raise JobInterrupted(signum)


def exit_status(interruption: JobInterrupted) -> int:
    """Return what shells expect of a process that a signal ended."""
    return 128 + interruption.signum
