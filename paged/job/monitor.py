"""Monitor of a job for the watchdog: what to save, and whether its steps have stalled."""

from collections.abc import Callable

from pagedrun.paged.job.output.output_file import OutputFile
from pagedrun.paged.job.signals import NOTHING_WRITTEN


class JobMonitor:
    """Job with a claimed output; implements `signals.Monitored`.

    `stall_timeout_s` is the longest time between two engine steps, in seconds; 0 for no limit.
    """

    def __init__(self, output: OutputFile, stall_timeout_s: float) -> None:
        self._output = output
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
        self._output.close()
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
