"""`pagedrun diff`: comparison of two outputs, on stderr or as JSON on stdout."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, Display
from pagedrun.paged.values.flags import Flag, Panel

HELP = """Compare two outputs of `pagedrun generate`: changed rows and their first difference.

Rows are matched by their ids if these are unique in both files, otherwise by their position in \
the input. Usage and the columns of the input are not compared.

Examples:

  pagedrun diff old.out.jsonl new.out.jsonl
  pagedrun diff old.out.jsonl new.out.jsonl --show 50
  pagedrun diff old.out.jsonl new.out.jsonl --json --quiet | jq .rows

Exit status: 0 the same answers, 1 different answers, 2 refused.
"""
DIFFERENT = 1
DEFAULT_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """Options of `diff`."""

    before: Annotated[
        Path, Flag("Output of one run.", metavar="A", name="output_a", is_argument=True)
    ]
    after: Annotated[
        Path, Flag("Output of another run.", metavar="B", name="output_b", is_argument=True)
    ]
    show: Annotated[
        int | None,
        Flag(
            "Number of rows to show of each kind: changed, added, missing.",
            Panel.DISPLAY,
            "N",
            default="10",
            low=0,
        ),
    ] = None


FLAGS = Flags.of(DiffOptions) + GENERATE.only("json_report", "quiet")


def _diff(context: typer.Context, given: TypedValues) -> None:
    """Compare two outputs of `pagedrun generate`."""
    with exits.boundary():
        raise typer.Exit(_run(given))


diff = FLAGS.command(_diff)


def _run(given: TypedValues) -> int:
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.reading import read
    from pagedrun.cli.report.diff_report import draw_comparison
    from pagedrun.cli.terminal.console import print_json, stderr_console
    from pagedrun.paged.job.compare import compare

    options, display = read(DiffOptions, given), read(Display, given)
    most_shown = DEFAULT_SHOWN if options.show is None else options.show
    found = compare(options.before, options.after, most_shown)
    if not display.quiet:
        draw_comparison(found, stderr_console())
    if display.json_report:
        print_json(found)
    return exits.OK if found["same"] else DIFFERENT
