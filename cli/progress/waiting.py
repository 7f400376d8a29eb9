"""What a command is doing, while nothing of its answer is there to read."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

from pagedrun.cli.terminal.console import tell
from pagedrun.paged.job.progress import Phase, SilentListener


class Waiting(SilentListener):
    """A `JobListener` with one line on a terminal, which `stop` takes away; elsewhere none.

    What is to be warned of before the model loads is shown when it does: of a question that cannot
    be asked the error says all.
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._status: Status | None = None
        self._is_loading = False
        self._warnings: list[str] = []

    def on_phase(self, phase: Phase) -> None:
        """Show what begins."""
        if phase is Phase.LOAD:
            self._is_loading = True
            for message in self._warnings:
                self.on_warning(message)
        if self._quiet or not self._console.is_terminal:
            return
        if self._status is None:
            self._status = Status(Text(phase.value), console=self._console)
            self._status.start()
        self._status.update(Text(phase.value))

    def on_warning(self, message: str) -> None:
        """Show it, now or when the model loads."""
        if not self._is_loading:
            self._warnings.append(message)
        elif not self._quiet:
            tell(self._console, f"Warning: {message}")

    def stop(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()


@contextmanager
def show_waiting(console: Console, *, quiet: bool) -> Iterator[Waiting]:
    """Give a listener whose line is taken away when the block ends."""
    waiting = Waiting(console, quiet=quiet)
    try:
        yield waiting
    finally:
        waiting.stop()
