"""`pagedrun inspect-cache`: from a run's files to what its pool went through."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pagedrun.cli import exits
from pagedrun.cli.options import options
from pagedrun.cli.terminal.sizes import parse_size

HELP = """Show what became of every block of KV memory in a run.

TARGET is the output of `pagedrun generate`, its report (OUT.report.json) or its snapshot \
(OUT.snapshot.npz): the others are found beside it. Shows hits and misses, free and allocated \
blocks, a map of the pool at a moment, block tables of rows, the tree of shared prefixes, how long \
blocks were held, those that most rows shared, and every preemption with its cause. A TARGET that \
is the folder of `generate --prefix-store` is listed: what it holds, of which model, and its use.

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
Target = Annotated[
    Path,
    typer.Argument(
        metavar="TARGET", help="Output, report or snapshot of a run, or a prefix store."
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="The moment: a step (40), a share of the run (50%), a time (1.5s), peak, first or "
        "last. Default: peak.",
        rich_help_panel=_WHAT,
        show_default=False,
        metavar="WHEN",
    ),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        help="Show the block table of this row: a whole number is its index, counted from 0, "
        "anything else its id; id:17 is the id 17. Repeatable.",
        rich_help_panel=_WHAT,
        show_default=False,
        metavar="ROW",
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        help="How many prefixes, blocks and preemptions to list. Default: 10.",
        rich_help_panel=_WHAT,
        show_default=False,
        min=1,
        max=1000,
        metavar="N",
    ),
]
ShowText = Annotated[
    bool | None,
    typer.Option(
        "--show-text",
        help="Show how shared prefixes and chosen rows begin, read again from the run's input; "
        "what the run was given of the three flags below is given again. Off, no text is shown.",
        rich_help_panel=_TEXT,
        show_default=False,
    ),
]
Prune = Annotated[
    bool | None,
    typer.Option(
        "--prune",
        help="Remove damaged files from a prefix store, for which every byte of it is read.",
        rich_help_panel=_STORE,
        show_default=False,
    ),
]
PruneTo = Annotated[
    int | None,
    typer.Option(
        "--prune-to",
        help="--prune, and remove what was not used for longest until at most SIZE is left.",
        rich_help_panel=_STORE,
        show_default=False,
        parser=parse_size,
        metavar="SIZE",
    ),
]


def inspect_cache(  # one parameter for each flag: this is where Typer reads them from
    context: typer.Context,
    target: Target,
    at: At = None,
    row: Rows = None,
    top: Top = None,
    show_text: ShowText = None,
    prune: Prune = None,
    prune_to: PruneTo = None,
    system: options.System = None,
    prompt_template: options.PromptTemplateFlag = None,
    chat_template: options.ChatTemplate = None,
    html: options.HtmlPath = None,
    json_report: options.JsonFlag = None,
    quiet: options.Quiet = None,
) -> None:
    """Show what became of every block of KV memory in a run."""
    with exits.boundary():
        given = {key: value for key, value in context.params.items() if value not in (None, [], ())}
        _run(given)


def _run(given: Mapping[str, Any]) -> None:
    # Imported here, because `--help` must not wait for it.
    from pagedrun.paged.values.errors import UsageError

    target: Path = given["target"]
    if target.is_dir():
        _show_store(target, given)
        return
    if "prune" in given or "prune_to" in given:
        raise UsageError(f"{target} is no folder: --prune and --prune-to are for prefix stores")
    _show_run(target, given)


def _show_store(target: Path, given: Mapping[str, Any]) -> None:
    from pagedrun.cli.inspect.store_listing import DEFAULT_TOP, show_store
    from pagedrun.paged.values.errors import UsageError

    ours = ("target", "prune", "prune_to", "top", "quiet", "json_report")
    for name in [name for name in given if name not in ours]:
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"{target} is a folder: {flag} is for the files of a run")
    show_store(
        target,
        prune=bool(given.get("prune")),
        prune_to=given.get("prune_to"),
        top=given.get("top", DEFAULT_TOP),
        quiet=bool(given.get("quiet")),
        as_json=bool(given.get("json_report")),
    )


def _show_run(target: Path, given: Mapping[str, Any]) -> None:
    from pagedrun.cli.inspect.inspect_cache_notes import run_notes
    from pagedrun.cli.inspect.inspect_cache_report import draw_inspection
    from pagedrun.cli.page.saved_page import check_saved_page, write_saved_page
    from pagedrun.cli.terminal.console import note, stderr_console
    from pagedrun.paged.job.output.row_lookup import ID_PREFIX, find_rows, row_index
    from pagedrun.paged.job.output.run_files import RunFiles
    from pagedrun.paged.report.inspect.inspection import DEFAULT_TOP, Question, inspect_run
    from pagedrun.paged.report.inspect.moment import PEAK
    from pagedrun.paged.report.inspect.saved_report import SavedReport
    from pagedrun.paged.report.record.snapshot_file import read_snapshot

    files = RunFiles.find(target)
    page: Path | None = given.get("html")
    if page is not None:
        check_saved_page(files, page)
    snapshot = None if files.snapshot is None else read_snapshot(files.snapshot)
    report = None if files.report is None else SavedReport.read(files.report)
    names: list[str] = given.get("row", [])
    rows = find_rows(names, files.output)
    indices = tuple(dict.fromkeys(rows[name] for name in names))
    question = Question(given.get("at", PEAK), indices, given.get("top", DEFAULT_TOP))
    found = {"files": files.to_dict(), **inspect_run(snapshot, report, question)}
    found["notes"] = run_notes(files, snapshot, report, has_rows=bool(indices))
    ids = {i: name.removeprefix(ID_PREFIX) for name, i in rows.items() if row_index(name) is None}
    for row in found["rows"]:
        row["id"] = ids.get(row["row"])
    if given.get("show_text"):
        from pagedrun.cli.inspect.inspect_cache_texts import add_texts

        add_texts(found, files, given)
    if not given.get("quiet"):
        draw_inspection(found, stderr_console())
    if given.get("json_report"):
        # ASCII: a path in it may hold what turns a terminal around.
        json.dump(found, sys.stdout, ensure_ascii=True, allow_nan=False)
        sys.stdout.write("\n")
    if page is not None:
        write_saved_page(files, snapshot, page)
        if not given.get("quiet"):
            note(stderr_console(), f"page → {page}", "bold")
