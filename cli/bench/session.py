"""Session of a benchmark command: progress messages, and the result as tables, JSON or a file."""

import json
import shlex
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from pagedrun.cli.bench.command import Bench, BenchCommand, Figures
from pagedrun.cli.bench.options import ResultOptions
from pagedrun.cli.bench.tables import Sheet
from pagedrun.cli.terminal.console import note, safe, stderr_console
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.bench.result import framed
from pagedrun.paged.values.errors import UsageError

SUFFIXES = (".json", ".md")


class Session:
    """Messages and results of a benchmark command.

    `html` is the path of the page, if one is written. The constructor sets environment variables
    for torch and must run before torch is imported. It raises `UsageError` for a path that cannot
    be written.
    """

    def __init__(self, options: ResultOptions, html: Path | None = None) -> None:
        from pagedrun.kernels.environment.threads import prepare_environment

        if html is not None:
            from pagedrun.cli.page.page_file import check_target

            check_target(html, [(options.save, "--save file")])
        check_save(options.save)
        prepare_environment()
        self._console = stderr_console()
        self._options = options
        self._html = html

    def say(self, message: str) -> None:
        """Report progress."""
        if not self._options.quiet:
            note(self._console, message, style="dim")

    def measure(self, command: BenchCommand[Figures], bench: Bench[Figures]) -> dict[str, Any]:
        """Run a benchmark, show and save its tables, and return the result."""
        began, started = datetime.now(UTC), time.monotonic()
        figures = bench.run(self.say)
        seconds = time.monotonic() - started  # the wall clock may be set meanwhile
        result = framed(command.name, typed_command(), began, seconds, figures)
        lines = described_lines(
            result, [(label, each(figures)) for label, each in command.described.items()]
        )
        sheets = command.sheets(figures)
        if not self._options.quiet:
            self._console.print()
            draw(self._console, lines, sheets)
        if self._options.save is not None:
            keep(self._options.save, result, lines, sheets)
            self.say(f"Saved in {self._options.save}")
        if self._html is not None and command.page is not None:
            command.page(figures, lines).write(self._html)
            self.say(f"Page in {self._html}")
        return result

    def finish(self, result: Mapping[str, object]) -> None:
        """Print the result as JSON if that was asked for."""
        if self._options.json_result:
            json.dump(result, sys.stdout, ensure_ascii=True, allow_nan=False)
            sys.stdout.write("\n")
            sys.stdout.flush()


def typed_command() -> str:
    """Return the command line, quoted for a shell."""
    return shlex.join(["pagedrun", *sys.argv[1:]])


def check_save(path: Path | None) -> None:
    """Raise `UsageError` if a result cannot be saved at `path`."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--save {path}: the name must end in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"--save {path}: there is no folder {path.parent}")


def described_lines(
    result: Mapping[str, Any], described: Seq[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the run (`described`), its device and its date as labelled lines."""
    hardware = result["hardware"]
    versions = ", ".join(
        f"{name} {version}" for name, version in hardware["versions"].items() if version
    )
    loads = " ".join(f"{load:.1f}" for load in hardware["load_average"])
    gpu = result["device"].get("name")
    return [
        ("command", result["command"]),
        *described,
        (
            "machine",
            f"{f'{gpu}, ' if gpu else ''}{hardware['processor']}, {hardware['threads']} threads, "
            f"{show_size(hardware['memory'])}, load {loads}",
        ),
        ("versions", f"python {hardware['python']}, {versions}"),
        ("date", f"{result['began']}, {result['seconds']:.0f} s in all"),
    ]


def draw(console: Console, lines: Seq[tuple[str, str]], sheets: Seq[Sheet]) -> None:
    """Print the description of the run and the tables on `console`."""
    for label, value in lines:
        note(console, f"{label:10}{value}")
    for sheet in sheets:
        console.print()
        sheet.draw(console)


def keep(
    path: Path,
    result: Mapping[str, object],
    lines: Seq[tuple[str, str]],
    sheets: Seq[Sheet],
) -> None:
    """Write the result to `path`, as JSON or Markdown by its suffix; raises `UsageError`."""
    if path.suffix == ".md":
        text = markdown(f"pagedrun bench {result['bench']}", lines, sheets)
    else:
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save {path} cannot be written ({error.strerror})") from error


def markdown(title: str, lines: Seq[tuple[str, str]], sheets: Seq[Sheet]) -> str:
    """Return the description of the run and the tables as GitHub's Markdown, under a title."""
    listed = [f"- {label}: `{safe(value)}`" for label, value in lines]
    return "\n".join([f"## {title}", "", *listed, "", *(sheet.markdown() for sheet in sheets)])
