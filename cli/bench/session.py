"""Session: one call of a benchmark command, from its first word on the screen to its result."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pagedrun.cli.bench.host_sheets import describe_host_rows, host_sheets
from pagedrun.cli.bench.kernels_sheets import (
    describe_roofline,
    describe_shape,
    describe_sizes,
    kernels_sheets,
)
from pagedrun.cli.bench.memory_sheets import describe_requests, describe_token, memory_sheets
from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.bench.prefix_sheets import describe_sweep, prefix_sheets
from pagedrun.cli.bench.publish import (
    check_save,
    describe_model,
    describe_run,
    draw,
    keep,
    print_json,
    typed_command,
)
from pagedrun.cli.bench.sheet import Sheet
from pagedrun.cli.bench.throughput_sheets import describe_rows, throughput_sheets
from pagedrun.cli.terminal.console import note, stderr_console

Describe = Callable[[Mapping[str, Any]], str]

# What to say of a result above its tables, each line with its label.
_DESCRIBED: dict[str, dict[str, Describe]] = {
    "throughput": {"model": describe_model, "rows": describe_rows},
    "prefix": {"model": describe_model, "rows": describe_sweep},
    "kernels": {"layer": describe_shape, "sizes": describe_sizes, "roof": describe_roofline},
    "memory": {"token": describe_token, "requests": describe_requests},
    "host": {"rows": describe_host_rows},
}
_SHEETS = {
    "throughput": throughput_sheets,
    "prefix": prefix_sheets,
    "kernels": kernels_sheets,
    "memory": memory_sheets,
    "host": host_sheets,
}


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

    def measure(self, name: str, bench: Any) -> dict[str, Any]:
        """Run a benchmark, show its tables and return its result, framed."""
        from pagedrun.paged.bench.result import framed

        began = datetime.now(UTC)
        result = framed(name, typed_command(), began, bench.run(self.say))
        if not self._quiet:
            self._console.print()
            draw(self._console, lines_of(result), sheets_of(result))
        if self._save is not None:
            keep(self._save, result, lines_of(result), sheets_of(result))
            self.say(f"Kept in {self._save}")
        return result

    def finish(self, result: Mapping[str, Any]) -> None:
        """Print the result as JSON if that was asked for."""
        if self._json:
            print_json(result)


def lines_of(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a framed result says above its tables, as labelled lines."""
    described = _DESCRIBED[result["bench"]]
    return describe_run(result, [(label, each(result)) for label, each in described.items()])


def sheets_of(result: Mapping[str, Any]) -> list[Sheet]:
    """Return the tables of a framed result."""
    return _SHEETS[result["bench"]](result)
