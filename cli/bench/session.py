"""Session: one call of a benchmark command, from its first word on the screen to its result."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.bench.publish import check_save, draw, keep, print_json, typed_command
from pagedrun.cli.bench.view import View
from pagedrun.cli.terminal.console import note, stderr_console
from pagedrun.paged.bench.result import Figures, Measured, Result

Made = TypeVar("Made", bound=Measured, covariant=True)


class Bench(Protocol[Made]):
    """A benchmark with its settings."""

    def run(self, say: Callable[[str], None], /) -> Made:
        """Measure, telling `say` what is being done; return what was measured."""
        ...


class Session:
    """Where a benchmark command talks and puts its results.

    `save` is where a result is kept, if anywhere. Making one sets the environment that torch reads
    when it is imported, so make it before. Raises `UsageError` if `save` cannot be written.
    """

    def __init__(self, *, quiet: bool, json_result: bool, save: Path | None = None) -> None:
        from pagedrun.kernels.environment.threads import prepare_environment

        check_save(save)
        prepare_environment()
        self._console = stderr_console()
        self._quiet = quiet
        self._json = json_result
        self._save = save

    @classmethod
    def of(cls, options: ResultOptions) -> "Session":
        """Return the session that the flags of a command ask for."""
        return cls(quiet=options.quiet, json_result=options.json_result, save=options.save)

    def say(self, message: str) -> None:
        """Tell what is being done."""
        if not self._quiet:
            note(self._console, message, style="dim")

    def measure(self, view: View[Figures], bench: Bench[Figures]) -> Result[Figures]:
        """Run a benchmark, show its tables and return its result."""
        began = datetime.now(UTC)
        result = Result.of(view.name, typed_command(), began, bench.run(self.say))
        if not self._quiet:
            self._console.print()
            draw(self._console, view.lines(result), view.sheets(result.figures))
        if self._save is not None:
            sheets = view.sheets(result.figures)
            keep(self._save, result.to_dict(), view.lines(result), sheets)
            self.say(f"Saved in {self._save}")
        return result

    def finish(self, result: Mapping[str, object]) -> None:
        """Print the result as JSON if that was asked for."""
        if self._json:
            print_json(result)
