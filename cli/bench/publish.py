"""Where a result goes: tables to stderr, JSON to stdout, either to a file."""

import json
import shlex
import sys
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

from rich.console import Console

from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.terminal.console import note
from pagedrun.cli.terminal.safe_text import safe
from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.bench.result import Frame, MeasuredDevice
from pagedrun.paged.bench.runs.run_figures import PrefixBenchFigures, ThroughputBenchFigures
from pagedrun.paged.values.errors import UsageError

SUFFIXES = (".json", ".md")


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


def describe_model(result: ThroughputBenchFigures | PrefixBenchFigures) -> str:
    """Return the model in a line."""
    model = result["model"]
    return (
        f"{model['name']}, {model['num_layers']} layers, {model['vocab_size']:,} tokens in the "
        f"vocabulary, {model['dtype']}; weights {model['weights']}"
    )


def describe_run(
    frame: Frame, device: MeasuredDevice, described: Seq[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return what was run (`described`), on what and when, as labelled lines."""
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
    """Print what was run and the tables on `console`."""
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
    """Return what was run and the tables in GitHub's Markdown, under a title."""
    listed = [f"- {label}: `{safe(value)}`" for label, value in lines]
    return "\n".join([f"## {title}", "", *listed, "", *(sheet.markdown() for sheet in sheets)])


def print_json(result: Mapping[str, object]) -> None:
    """Print the result on stdout, as one line."""
    json.dump(result, sys.stdout, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()
