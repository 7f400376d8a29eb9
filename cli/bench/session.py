"""Session of a benchmark command: progress messages, and the result as tables, JSON or a file."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.console import Console

from pagedrun.cli.bench.options import ResultOptions
from pagedrun.cli.bench.tables import Sheet
from pagedrun.cli.terminal.console import note, safe, stderr_console
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.bench.result import Figures, Frame, Measured, MeasuredDevice, Result
from pagedrun.paged.values.errors import UsageError

SUFFIXES = (".json", ".md")

Made = TypeVar("Made", bound=Measured, covariant=True)


class Bench(Protocol[Made]):
    """A benchmark with its settings."""

    def run(self, say: Callable[[str], None], /) -> Made:
        """Measure, reporting progress to `say`; return the figures."""
        ...


@dataclass(frozen=True, slots=True)
class View(Generic[Figures]):
    """Description of the figures of the benchmark `name`, and their tables.

    `described` are lines by their labels.
    """

    name: str
    described: Mapping[str, Callable[[Figures], str]]
    sheets: Callable[[Figures], list[Sheet]]

    def lines(self, result: Result[Figures]) -> list[tuple[str, str]]:
        """Return the run, its device and its date as labelled lines."""
        figures = result.figures
        described = [(label, describe(figures)) for label, describe in self.described.items()]
        return describe_run(result.frame, figures["device"], described)


class Session:
    """Messages and results of a benchmark command.

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
        """Report progress."""
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


def typed_command() -> str:
    """Return the command line as it can be typed again."""
    return shlex.join(["pagedrun", *sys.argv[1:]])


def check_save(path: Path | None) -> None:
    """Raise `UsageError` if a result cannot be kept at `path`; before it is measured."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--save {path}: the name must end in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"--save {path}: there is no folder {path.parent}")


def describe_run(
    frame: Frame, device: MeasuredDevice, described: Seq[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the run (`described`), its device and its date as labelled lines."""
    hardware = frame["hardware"]
    versions = ", ".join(
        f"{name} {version}" for name, version in hardware["versions"].items() if version
    )
    loads = " ".join(f"{load:.1f}" for load in hardware["load_average"])
    gpu = device.get("name")
    return [
        ("command", frame["command"]),
        *described,
        (
            "machine",
            f"{f'{gpu}, ' if gpu else ''}{hardware['processor']}, {hardware['threads']} threads, "
            f"{show_size(hardware['memory'])}, load {loads}",
        ),
        ("versions", f"python {hardware['python']}, {versions}"),
        ("date", f"{frame['began']}, {frame['seconds']:.0f} s in all"),
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
    """Write the result to `path`, in the form that its suffix names; raises `UsageError`."""
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


def print_json(result: Mapping[str, object]) -> None:
    """Print the result on stdout, as one line."""
    json.dump(result, sys.stdout, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()
