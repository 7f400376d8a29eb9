"""JobWard: what the watchdog has to know about a job, and what it may do for it."""

from collections.abc import Callable

from pagedrun.paged.job.control.watchdog import NOTHING_WRITTEN
from pagedrun.paged.job.output.output_file import OutputFile


class JobWard:
    """A job with a claimed output; implements `watchdog.Ward`.

    `stall_timeout_s` is the longest time, in seconds, that may pass between two steps of the
    engine; 0 if it may be any.
    """

    def __init__(self, output: OutputFile, stall_timeout_s: float) -> None:
        self._output = output
        self._stall_timeout_s = stall_timeout_s
        self._leave: Callable[[], str] | None = None
        self._dump: Callable[[], str] | None = None
        self._idle_s = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether there are rows to lose."""
        return self._leave is not None

    def begin(self, leave: Callable[[], str]) -> None:
        """From now on there are rows to lose: `leave` saves them and returns what to say."""
        self._leave = leave

    def run(self, dump: Callable[[], str]) -> None:
        """From now on steps are expected; `dump` saves the engine's state and says where."""
        self._dump = dump
        self._idle_s = 0.0

    def rest(self) -> None:
        """From now on no step is expected."""
        self._dump = None

    def step(self) -> None:
        """Take note of a step."""
        self._idle_s = 0.0

    def leave(self) -> str:
        """Save what was written; an output that was never begun is removed."""
        if self._leave is not None:
            return self._leave()
        self._output.close()
        return NOTHING_WRITTEN

    def waited(self, seconds: float) -> str | None:
        """Return the sentence to print if there was no step for too long."""
        self._idle_s += seconds
        dump = self._dump
        if dump is None or not 0 < self._stall_timeout_s <= self._idle_s:
            return None
        return (
            f"the engine has not finished a step for {self._stall_timeout_s:g} seconds; "
            f"raise --stall-timeout to allow more time; {dump()}"
        )
