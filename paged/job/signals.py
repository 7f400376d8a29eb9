"""Signals: ends the process between two rows, or by a watchdog thread.

Python runs signal handlers in the main thread, between two of its own instructions: while a kernel
compiles or a long step computes, a signal waits. The operating system also writes each signal into
a pipe, which the watchdog reads. The watchdog also ends a process with stalled steps. Imports only
the standard library, since the command imports this module before anything else.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Protocol


class JobInterrupted(BaseException):
    """Stop requested by user, system or deadline. Not an `Exception`, so nothing swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(stopped_by(signum))
        self.signum = signum


class Monitored(Protocol):
    """Work protected by the watchdog. Called in its thread; the main thread may be anywhere."""

    @property
    def has_begun(self) -> bool:
        """True if a sudden end could lose anything."""

    def leave(self) -> str:
        """Make the results durable before the process ends; return the message to print."""

    def waited(self, seconds: float) -> str | None:
        """Return the message to print if the given time without a step is too long."""


class JobMonitor:
    """Job with a claimed output; implements `Monitored`.

    `release` gives the output up while nothing is written. `stall_timeout_s` is the longest time
    between two engine steps, in seconds; 0 for no limit.
    """

    def __init__(self, release: Callable[[], None], stall_timeout_s: float) -> None:
        self._release = release
        self._stall_timeout_s = stall_timeout_s
        self._leave: Callable[[], str] | None = None
        self._dump: Callable[[], str] | None = None
        self._idle_s = 0.0

    @property
    def has_begun(self) -> bool:
        """True if there are rows to lose."""
        return self._leave is not None

    def begin(self, leave: Callable[[], str]) -> None:
        """Start protecting rows: `leave` saves them and returns the message to print."""
        self._leave = leave

    def run(self, dump: Callable[[], str]) -> None:
        """Start expecting steps; `dump` saves the engine's state and returns its path."""
        self._dump = dump
        self._idle_s = 0.0

    def rest(self) -> None:
        """Stop expecting steps."""
        self._dump = None

    def step(self) -> None:
        """Record a step."""
        self._idle_s = 0.0

    def leave(self) -> str:
        """Save the written rows; an output without any is removed."""
        if self._leave is not None:
            return self._leave()
        self._release()
        return NOTHING_WRITTEN

    def waited(self, seconds: float) -> str | None:
        """Return the message to print if the last step is too long ago."""
        self._idle_s += seconds
        dump = self._dump
        if dump is None or not 0 < self._stall_timeout_s <= self._idle_s:
            return None
        return (
            f"the engine has not finished a step for {self._stall_timeout_s:g} seconds; "
            f"raise --stall-timeout to allow more time; {dump()}"
        )


GRACE_SECONDS = 3.0  # for the main thread to stop by itself; the rest takes less than two more


class Watchdog:
    """Ends the process `grace_s` seconds after a signal, at once after a second one.

    `say` is called with the reason. Time with the whole process stopped, by SIGSTOP or a suspended
    machine, does not count.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        grace_s: float = GRACE_SECONDS,
        exit_process: Callable[[int], None] = os._exit,
    ) -> None:
        self._say = say
        self._grace_s = grace_s
        self._exit = exit_process
        self._work: Monitored | None = None
        self._pipe: tuple[int, int] | None = None
        self._previous_fd = -1
        self._word = threading.Lock()  # held by the first thread to report the end of the process
        self._thread: threading.Thread | None = None
        self._bus_errors: object = None

    def start(self) -> None:
        """Start watching; call from the main thread."""
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; call from the main thread."""
        if self._pipe is None or self._thread is None:
            return
        signal.set_wakeup_fd(self._previous_fd)
        read_end, write_end = self._pipe
        os.close(write_end)  # the thread reads the end of the pipe
        self._thread.join()
        os.close(read_end)
        self._pipe = self._thread = None

    def protect(self, work: Monitored) -> None:
        """Protect `work` from now on."""
        self._work = work

    def catch_bus_errors(self) -> None:
        """End the process with a sentence, too, if memory of a mapped file cannot be read."""
        if self._pipe is None or self._bus_errors is not None:
            return
        # Here: the command imports this module before anything else.
        from pagedrun.kernels.environment.bus_errors import CUT_FILE, BusErrors

        self._bus_errors = BusErrors(self._pipe[1], f"Error: {CUT_FILE}; finished rows are kept")

    @property
    def has_unsaved_rows(self) -> bool:
        """True if the process should be given time to stop by itself."""
        return self._work is not None and self._work.has_begun

    def claim_message(self) -> bool:
        """Claim the final message; return whether the caller is the first to do so."""
        return self._word.acquire(blocking=False)

    def end_stopped(self, signum: int) -> None:
        """End the process because of a signal, with the message of the protected work."""
        self._end(exit_status(signum), stopped_by(signum), NOTHING_WRITTEN)

    def _watch(self) -> None:
        assert self._pipe is not None
        poll = select.poll()
        poll.register(self._pipe[0], select.POLLIN)
        first: int | None = None
        waited_s = 0.0
        while True:
            tick_s = TICK_SECONDS if first is None else LAST_TICK_SECONDS
            began = time.monotonic()
            if poll.poll(tick_s * 1000):
                arrived = os.read(self._pipe[0], 1)
                if not arrived:
                    return
                if arrived[0] == signal.SIGBUS:
                    from pagedrun.kernels.environment.bus_errors import unreadable_memory

                    self._end(STALLED, f"Error: {unreadable_memory()}", "")
                    return
                if arrived[0] in (*SIGNALS, DEADLINE):
                    if first is not None:
                        self._exit(exit_status(first))
                        return
                    first = arrived[0]
            passed_s = min(time.monotonic() - began, tick_s)
            waited_s += passed_s if first is not None else 0.0
            if first is not None and waited_s >= self._grace_s:
                self.end_stopped(first)
                return
            stalled = self._work.waited(passed_s) if self._work is not None else None
            if stalled is not None and first is None:
                self._end(STALLED, f"Error: {stalled}", "")
                return

    def _end(self, status: int, sentence: str, otherwise: str) -> None:
        """End the process with the message of the protected work, `otherwise` without one."""
        told: list[str] = []
        work = self._work
        if work is not None:
            # In a thread of its own, since a disk that does not answer must not block the end.
            leaving = threading.Thread(target=lambda: told.append(work.leave()), daemon=True)
            leaving.start()
            leaving.join(LEAVE_SECONDS)
        if self.claim_message():
            self._say("; ".join(part for part in [sentence, *(told or [otherwise])] if part))
        else:
            time.sleep(LEAVE_SECONDS)  # the main thread is printing its message, and ends by itself
        self._exit(status)


class SignalGuard:
    """Context in which SIGINT, SIGTERM and SIGHUP raise `JobInterrupted` in the main thread.

    The signal waits while `hold()` is active. A second one kills the process at once. Outside the
    main thread, where Python delivers no signals, entering changes nothing.

    With a `watchdog` the guard is that of the whole process. A signal ends it at once while there
    is nothing to lose: exceptions raised in the middle of an import or a compiler are often
    swallowed. The watchdog ends it if the main thread does not react, for example in a long native
    call.

    `began` is the creation time of the guard, on the clock of `time.monotonic`.
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
                if signal.getsignal(each) is not signal.SIG_IGN:  # set by nohup
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
        """Delay signals until the block is left."""
        self._num_holds += 1
        try:
            yield
        finally:
            self._num_holds -= 1
            if self._num_holds == 0 and self._pending is not None:
                pending, self._pending = self._pending, None
                self._stop(pending)

    def claim_message(self) -> bool:
        """Claim the final message of the process; see `Watchdog`."""
        return self._watchdog is None or self._watchdog.claim_message()

    def protect(self, work: Monitored) -> None:
        """Protect `work` by the watchdog, if there is one."""
        if self._watchdog is not None:
            self._watchdog.protect(work)

    def catch_bus_errors(self) -> None:
        """Have the watchdog, if there is one, end the process for memory that cannot be read."""
        if self._watchdog is not None:
            self._watchdog.catch_bus_errors()

    def end_at(self, deadline: float) -> None:
        """End the job at a deadline, on the clock of `time.monotonic`, as a signal does."""
        if threading.current_thread() is threading.main_thread():
            self._previous[DEADLINE] = signal.signal(DEADLINE, self._on_signal)
            left = deadline - time.monotonic()
            if left <= 0:  # a timer of 0 would never fire
                self._on_signal(DEADLINE, None)
            else:
                signal.setitimer(signal.ITIMER_REAL, left)

    def end_when_done(self) -> None:
        """Cancel the deadline, if there is one."""
        if DEADLINE in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(DEADLINE, self._previous.pop(DEADLINE))

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.end_when_done()  # the timer must not end the handling of another signal
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
        self.interruption = JobInterrupted(signum)
        if self._num_holds:
            self._pending = self.interruption
        else:
            self._stop(self.interruption)

    def _stop(self, interruption: JobInterrupted) -> None:
        if self._watchdog is not None and not self._watchdog.has_unsaved_rows:
            self._watchdog.end_stopped(interruption.signum)
        raise interruption


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DEADLINE = signal.SIGALRM  # sent by the timer of a deadline
NOTHING_WRITTEN = "nothing was written"
LEAVE_SECONDS = 1.0  # for rows to reach the disk when the process ends without its main thread
TICK_SECONDS = 0.5
LAST_TICK_SECONDS = 0.1  # after a signal
STALLED = 1  # exit status of a stalled run, and of one whose files were cut
STOPPED_EARLY = 4  # exit status after a deadline


def stopped_by(signum: int) -> str:
    """Return the message of a process ended by a signal."""
    if signum == DEADLINE:
        return "Stopped at the deadline"
    return f"Stopped by {signal.Signals(signum).name}"


def exit_status(signum: int) -> int:
    """Return the shell's exit status of a process ended by a signal."""
    if signum == DEADLINE:
        return STOPPED_EARLY
    return 128 + signum
