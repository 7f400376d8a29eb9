"""`pagedrun inspect-cache`: block history of a finished run, or entries of a prefix store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, Display, RunOptions
from pagedrun.paged.values.errors import option
from pagedrun.paged.values.flags import Flag, Form

HELP = """Show every block of KV memory in a run.

TARGET is the output of `pagedrun generate`, its report (OUT.report.json) or its snapshot \
(OUT.snapshot.npz): the others are found beside it. Shows hits and misses, free and allocated \
blocks, a map of the pool at a moment, block tables of rows, the tree of shared prefixes, block \
lifetimes, the most shared blocks, and every preemption with its cause. If TARGET is a folder of \
`generate --prefix-store`, its contents, models and use are listed.

Examples:

  pagedrun inspect-cache prompts.out.jsonl
  pagedrun inspect-cache prompts.out.jsonl --at 40 --row 17 --row my-id
  pagedrun inspect-cache prompts.out.jsonl --at 50% --top 30 --show-text
  pagedrun inspect-cache prompts.out.jsonl --html memory.html
  pagedrun inspect-cache prompts.out.jsonl --json --quiet | jq .statistics
  pagedrun inspect-cache ~/prefixes --prune-to 4GiB

Exit status: 0 shown, 1 failure, 2 refused.
"""

_WHAT, _TEXT, _STORE = "What to show", "Texts", "Prefix store"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """Options of `inspect-cache`."""

    target: Annotated[
        Path,
        Flag(
            "Output, report or snapshot of a run, or a prefix store.",
            metavar="TARGET",
            is_argument=True,
        ),
    ]
    at: Annotated[
        str | None,
        Flag(
            "Moment: a step (40), a share of the run (50%), a time (1.5s), peak, first or last.",
            _WHAT,
            "WHEN",
            default="peak",
        ),
    ] = None
    row: Annotated[
        tuple[str, ...],
        Flag(
            "Show the block table of this row: a whole number is its index, counted from 0, "
            "anything else its id; id:17 is the id 17. Repeatable.",
            _WHAT,
            "ROW",
        ),
    ] = ()
    id: Annotated[
        tuple[str, ...],
        Flag("Show the block table of the row with this `id`. Repeatable.", _WHAT, "ID"),
    ] = ()
    top: Annotated[
        int | None,
        Flag(
            "Number of prefixes, blocks and preemptions to list.",
            _WHAT,
            "N",
            default="10",
            low=1,
            high=1000,
        ),
    ] = None
    replica: Annotated[
        int | None,
        Flag(
            "Replica whose pool is shown, in a run with --replicas.",
            _WHAT,
            "K",
            default="the pool of a run with one engine",
            low=0,
        ),
    ] = None
    show_text: Annotated[
        bool,
        Flag(
            "Show the beginnings of shared prefixes and selected rows, read again from the "
            "run's input; if the run used any of the three flags below, pass it again. Off, "
            "no text is shown.",
            _TEXT,
            declared=("--show-text",),
        ),
    ] = False
    prune: Annotated[
        bool,
        Flag(
            "Remove damaged files from a prefix store; this reads every byte of the store.",
            _STORE,
            declared=("--prune",),
        ),
    ] = False
    prune_to: Annotated[
        int | None,
        Flag(
            "Like --prune, and remove the least recently used files until at most SIZE remains.",
            _STORE,
            "SIZE",
            form=Form.SIZE,
        ),
    ] = None


FLAGS = Flags.of(InspectOptions) + GENERATE.only(
    "system", "prompt_template", "chat_template", "html", "json_report", "quiet"
)


def _inspect_cache(context: typer.Context, given: TypedValues) -> None:
    """Show every block of KV memory in a run."""
    with exits.boundary():
        _run(given)


def _run(given: TypedValues) -> None:
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.reading import read
    from pagedrun.paged.values.errors import UsageError

    options, display = read(InspectOptions, given), read(Display, given)
    if options.target.is_dir():
        _show_store(options, display, given)
        return
    if options.prune or options.prune_to is not None:
        raise UsageError(
            f"{options.target} is not a folder: --prune and --prune-to apply to prefix stores"
        )
    _show_run(options, display, given)


def _show_run(options: InspectOptions, display: Display, given: TypedValues) -> None:
    from pagedrun.cli.options.reading import read
    from pagedrun.cli.page.page_file import check_saved_page, write_saved_page
    from pagedrun.cli.report.inspection import ShownInspection, draw_inspection, run_notes
    from pagedrun.cli.terminal.console import note, print_json, stderr_console
    from pagedrun.paged.job.output.row_lookup import ID_PREFIX, find_rows, row_index
    from pagedrun.paged.job.output.side_files import RunFiles
    from pagedrun.paged.metrics.inspection import DEFAULT_TOP, InspectionQuery, inspect_run
    from pagedrun.paged.metrics.pool_moments import PEAK
    from pagedrun.paged.metrics.saved_report import SavedReport
    from pagedrun.paged.metrics.snapshot_file import read_snapshot

    files = RunFiles.find(options.target)
    if options.replica is not None:
        files = files.of_replica(options.replica)
    page = read(RunOptions, given).html
    if page is not None:
        check_saved_page(files, page)
    snapshot = None if files.snapshot is None else read_snapshot(files.snapshot)
    report = None if files.report is None else SavedReport.read(files.report)
    named = [*options.row, *(f"{ID_PREFIX}{each}" for each in options.id)]
    rows = find_rows(named, files.output)
    indices = tuple(dict.fromkeys(rows[name] for name in named))
    question = InspectionQuery(options.at or PEAK, indices, options.top or DEFAULT_TOP)
    found: ShownInspection = {
        "files": files.to_dict(),
        **inspect_run(snapshot, report, question),
        "notes": run_notes(
            files, snapshot, report, has_rows=bool(indices), of_replica=options.replica is not None
        ),
        "replicas": None if report is None or not report.replicas else list(report.replicas),
    }
    ids = {i: name.removeprefix(ID_PREFIX) for name, i in rows.items() if row_index(name) is None}
    for row in found["rows"]:
        row["id"] = ids.get(row["row"])
    if options.show_text:
        from pagedrun.cli.report.inspection_texts import add_texts

        add_texts(found, files, given)
    if not display.quiet:
        draw_inspection(found, stderr_console())
    if display.json_report:
        print_json(found)
    if page is not None:
        write_saved_page(files, snapshot, page)
        if not display.quiet:
            note(stderr_console(), f"page → {page}", "bold")


def _show_store(options: InspectOptions, display: Display, given: TypedValues) -> None:
    from pagedrun.cli.report.store_listing import DEFAULT_TOP, show_store
    from pagedrun.paged.values.errors import UsageError

    ours = ("target", "prune", "prune_to", "top", "quiet", "json_report")
    for name in [name for name in given if name not in ours]:
        raise UsageError(
            f"{options.target} is a folder: {option(name)} applies to the files of a run"
        )
    show_store(
        options.target,
        prune=options.prune,
        prune_to=options.prune_to,
        top=options.top or DEFAULT_TOP,
        quiet=display.quiet,
        as_json=display.json_report,
    )


inspect_cache = FLAGS.command(_inspect_cache)
