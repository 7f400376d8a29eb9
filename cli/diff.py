"""`pagedrun diff`: comparison of two outputs, on stderr or as JSON on stdout."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, Display
from pagedrun.paged.values.flags import Flag, Panel

if TYPE_CHECKING:
    from pagedrun.paged.job.compare import Comparison
    from pagedrun.paged.job.vector_comparison import VectorComparison

HELP = """Compare two outputs: changed rows and their first difference, or cosines of vectors.

Rows are matched by their ids if these are unique in both files, otherwise by their position in \
the input. Usage and the columns of the input are not compared. Vectors of `pagedrun embed`, in \
.jsonl, .jsonl.gz, .parquet or .npy, are the same if no cosine is below --min-cosine and the same \
rows failed.

Examples:

  pagedrun diff old.out.jsonl new.out.jsonl
  pagedrun diff old.out.jsonl new.out.jsonl --show 50
  pagedrun diff old.out.jsonl new.out.jsonl --json --quiet | jq .rows
  pagedrun diff float32.npy int8.parquet --min-cosine 0.995

Exit status: 0 the same results, 1 different results, 2 refused.
"""
DIFFERENT = 1
DEFAULT_SHOWN = 10
DEFAULT_MIN_COSINE = 0.9999


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
            "Number of rows to show of each kind: changed, added, missing; of vectors, those with "
            "the lowest cosines.",
            Panel.DISPLAY,
            "N",
            default="10",
            low=0,
        ),
    ] = None
    min_cosine: Annotated[
        float | None,
        Flag(
            "Vectors with a lower cosine are different.",
            Panel.DISPLAY,
            "X",
            default=f"{DEFAULT_MIN_COSINE:g}",
            low=-1,
            high=1,
        ),
    ] = None


FLAGS = Flags.of(DiffOptions) + GENERATE.only("json_report", "quiet")


def _diff(context: typer.Context, given: TypedValues) -> None:
    """Compare two outputs."""
    with exits.boundary():
        raise typer.Exit(_run(given))


diff = FLAGS.command(_diff)


def _run(given: TypedValues) -> int:
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.reading import read
    from pagedrun.cli.report.diff_report import draw_comparison, draw_vector_comparison
    from pagedrun.cli.terminal.console import print_json, stderr_console
    from pagedrun.paged.job.compare import compare
    from pagedrun.paged.job.vector_comparison import compare_vectors, holds_vectors
    from pagedrun.paged.values.errors import UsageError, option

    options, display = read(DiffOptions, given), read(Display, given)
    most_shown = DEFAULT_SHOWN if options.show is None else options.show
    files, console = (options.before, options.after), stderr_console()
    found: Comparison | VectorComparison
    if any(map(holds_vectors, files)):
        threshold = DEFAULT_MIN_COSINE if options.min_cosine is None else options.min_cosine
        found = vectors = compare_vectors(*files, threshold=threshold, most_shown=most_shown)
        if not display.quiet:
            draw_vector_comparison(vectors, console)
    elif options.min_cosine is not None:
        raise UsageError(f"{option('min_cosine')}: neither file has vectors of pagedrun embed")
    else:
        found = answers = compare(*files, most_shown)
        if not display.quiet:
            draw_comparison(answers, console)
    if display.json_report:
        print_json(found)
    return exits.OK if found["same"] else DIFFERENT
