"""The watchdog: it ends a process whose main thread does not, and otherwise does nothing."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagedrun.paged.job.output.output_file import OutputFile
from pagedrun.paged.job.signals import (
    SIGNALS,
    JobInterrupted,
    JobMonitor,
    SignalGuard,
    Watchdog,
    exit_status,
)


class Busy:
    """A ward with rows to lose, and with as much patience as it is given."""

    has_begun = True

    def __init__(self, patience_s: float = 1e9) -> None:
        self.patience_s = patience_s
        self.num_left = 0

    def leave(self) -> str:
        self.num_left += 1
        return "2 of 3 rows are written"

    def waited(self, seconds: float) -> str | None:
        self.patience_s -= seconds
        return "no step" if self.patience_s < 0 else None


class Ended:
    """What a watchdog does to a process."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.statuses: list[int] = []
        self.happened = threading.Event()

    def exit(self, status: int) -> None:
        self.statuses.append(status)
        self.happened.set()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals are caught by somebody, whatever the tests run under, and so left behind."""
    before = {each: signal.signal(each, signal.default_int_handler) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture
def grace_s() -> float:
    """How long the main thread has to stop by itself; a test may give it another."""
    return 0.3


@pytest.fixture
def watched(grace_s: float) -> Iterator[tuple[Watchdog, Ended]]:
    ended = Ended()
    watchdog = Watchdog(ended.said.append, grace_s=grace_s, exit_process=ended.exit)
    # Handlers that do nothing, as if the main thread never came to its own.
    for each in SIGNALS:
        signal.signal(each, lambda signum, frame: None)
    watchdog.start()
    yield watchdog, ended
    watchdog.stop()


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_that_nobody_heeds(watched: tuple[Watchdog, Ended], signum: int) -> None:
    watchdog, ended = watched
    ward = Busy()
    watchdog.protect(ward)
    os.kill(os.getpid(), signum)
    ended.happened.wait()
    assert ended.statuses == [128 + signum]
    assert ended.said == [f"Stopped by {signal.Signals(signum).name}; 2 of 3 rows are written"]
    assert ward.num_left == 1


def test_what_the_main_thread_says_is_not_said_again(watched: tuple[Watchdog, Ended]) -> None:
    """It may come to its own words when the time that it has is almost over."""
    watchdog, ended = watched
    watchdog.protect(Busy())
    assert watchdog.claim_message()
    os.kill(os.getpid(), signal.SIGINT)
    ended.happened.wait()
    assert (ended.statuses, ended.said) == ([130], [])
    assert not watchdog.claim_message()


@pytest.mark.parametrize("grace_s", [1e9])
def test_a_second_one_at_once(watched: tuple[Watchdog, Ended]) -> None:
    watchdog, ended = watched
    ward = Busy()
    watchdog.protect(ward)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    ended.happened.wait()
    assert (ended.statuses, ended.said, ward.num_left) == ([143], [], 0)


def test_a_run_that_stands_still(watched: tuple[Watchdog, Ended]) -> None:
    watchdog, ended = watched
    watchdog.protect(Busy(patience_s=0.1))
    ended.happened.wait()
    assert (ended.statuses, ended.said) == ([1], ["Error: no step; 2 of 3 rows are written"])


def test_a_disk_that_does_not_answer_keeps_nobody(watched: tuple[Watchdog, Ended]) -> None:
    watchdog, ended = watched
    ward = Busy()
    released = threading.Event()

    def hang() -> str:
        released.wait()
        return "too late"

    ward.leave = hang  # type: ignore[method-assign]
    watchdog.protect(ward)
    os.kill(os.getpid(), signal.SIGHUP)
    ended.happened.wait()
    released.set()
    assert (ended.statuses, ended.said) == ([129], ["Stopped by SIGHUP; nothing was written"])


def test_it_leaves_no_trace() -> None:
    num_files = len(os.listdir("/proc/self/fd"))
    ended = Ended()
    with SignalGuard(Watchdog(ended.said.append, exit_process=ended.exit)):
        assert "watchdog" in [thread.name for thread in threading.enumerate()]
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]
    assert len(os.listdir("/proc/self/fd")) == num_files
    assert signal.set_wakeup_fd(-1) == -1
    assert not ended.statuses


class TestGuard:
    def test_nothing_to_lose_ends_the_process_on_the_spot(self, tmp_path: Path) -> None:
        ended = Ended()
        output = OutputFile.claim(str(tmp_path / "out"), overwrite=False, input_name="none")
        watchdog = Watchdog(ended.said.append, exit_process=ended.exit)
        with SignalGuard(watchdog) as guard:
            guard.protect(JobMonitor(output.close, 0))
            with pytest.raises(JobInterrupted):
                os.kill(os.getpid(), signal.SIGTERM)
        assert ended.statuses == [143]
        assert ended.said == ["Stopped by SIGTERM; nothing was written"]
        assert not (tmp_path / "out").exists()

    def test_it_waits_for_what_must_not_be_torn(self) -> None:
        done = []

        def work(guard: SignalGuard) -> None:
            with guard.hold():
                os.kill(os.getpid(), signal.SIGINT)
                done.append(1)
            done.append(2)

        with SignalGuard() as guard, pytest.raises(JobInterrupted, match="Stopped by SIGINT"):
            work(guard)
        assert done == [1]
        assert guard.interruption is not None

    def test_the_deadline_comes_once_and_not_behind_another_end(self) -> None:
        """The timer would end a process that is saving its rows, with a status of its own."""
        before = signal.getsignal(signal.SIGALRM)
        with SignalGuard() as guard:
            guard.end_at(time.monotonic() + 1000)
            with pytest.raises(JobInterrupted, match="Stopped by SIGTERM"):
                os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        with SignalGuard() as guard:
            guard.end_at(time.monotonic() + 1000)
            guard.end_when_done()
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        with SignalGuard() as guard, pytest.raises(JobInterrupted) as caught:
            guard.end_at(time.monotonic())
        assert exit_status(caught.value.signum) == 4
        assert signal.getsignal(signal.SIGALRM) is before

    def test_a_signal_that_is_ignored_stays_so(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with SignalGuard() as guard:
            os.kill(os.getpid(), signal.SIGHUP)
        assert guard.interruption is None


class TestWard:
    @pytest.fixture
    def ward(self, tmp_path: Path) -> JobMonitor:
        output = OutputFile.claim(str(tmp_path / "out"), overwrite=False, input_name="none")
        return JobMonitor(output.close, 10.0)

    def test_only_a_run_can_stall(self, ward: JobMonitor) -> None:
        assert ward.waited(1e6) is None
        ward.run(lambda: "its state is there")
        assert ward.waited(9.0) is None
        ward.step()
        assert ward.waited(9.0) is None
        told = ward.waited(1.0)
        assert told is not None
        assert told.startswith("the engine has not finished a step for 10 seconds; raise")
        assert told.endswith("; its state is there")
        ward.rest()
        assert ward.waited(1e6) is None

    def test_it_has_begun_when_there_are_rows(self, ward: JobMonitor) -> None:
        assert not ward.has_begun
        ward.begin(lambda: "three rows")
        assert ward.has_begun
        assert ward.leave() == "three rows"

    def test_zero_is_never(self, ward: JobMonitor, tmp_path: Path) -> None:
        output = OutputFile.claim(str(tmp_path / "other"), overwrite=False, input_name="none")
        patient = JobMonitor(output.close, 0.0)
        patient.run(str)
        assert patient.waited(1e9) is None
