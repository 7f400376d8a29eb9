"""`pagedrun show`: prompt of one row as read by the model, on stdout."""

import sys
from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import TypedValues
from pagedrun.cli.options.generate_flags import SHOW, Display, ShowOptions
from pagedrun.paged.values.errors import UsageError, option

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings

HELP = """Show the prompt of one row as the model will read it; the model's weights are not needed.

The text is written to stdout unchanged; on a terminal, special tokens are bold and the \
beginning shared with other rows is dim. Tokens, sharing with other rows, truncation, and the \
sampling parameters in effect are written to stderr. Flags are those of generate.

Examples:

  pagedrun show prompts.jsonl --model ./model
  pagedrun show prompts.jsonl --model ./model --row 17 --ids
  pagedrun show prompts.jsonl --model ./model --row my-id
  pagedrun show rows.csv --recipe judge --model ./model --id q-204
  pagedrun show prompts.jsonl --model ./model --json --quiet | jq -r .text

Exit status: 0 shown, 1 failure, 2 refused (also for a row that does not exist), 3 the row is \
invalid: its error is shown.
"""


def _show(context: typer.Context, given: TypedValues) -> None:
    """Show the prompt of one row as the model will read it."""
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings

    with exits.boundary():
        settings = Settings.of(given)
        with settings.named():
            raise typer.Exit(_run(settings))


show = SHOW.command(_show)


def _run(settings: "Settings") -> int:
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.job_flags import job_config
    from pagedrun.cli.progress.progress import show_progress
    from pagedrun.cli.report.shown_prompt import draw_figures, draw_prompt
    from pagedrun.cli.terminal.console import note, print_json, stderr_console, stdout_console, tell
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()
    from pagedrun.paged.files.atomic import json_fields
    from pagedrun.paged.job.output.row_lookup import ID_PREFIX, row_index
    from pagedrun.paged.job.shown_row import show_row

    display, options = settings.read(Display), settings.read(ShowOptions)
    if options.row is not None and options.id is not None:
        raise UsageError(f"{option('row')} and {option('id')} exclude each other")
    console = stderr_console()
    config = job_config(settings)
    if "model" not in settings.given and not display.quiet:
        note(console, f"No --model: using the bundled demo model ({config.engine.model})")
    index, row_id = None, options.id
    if options.row is not None:
        index = row_index(options.row)
        row_id = options.row.removeprefix(ID_PREFIX) if index is None else None
    with show_progress(display.progress, console, quiet=display.quiet) as listener:
        found = show_row(config, listener, index=index, id=row_id)
    row = found.row
    if options.json_row:
        print_json(row, default=json_fields)
    elif found.error is None:
        draw_prompt(row, stdout_console(), ids=options.ids)
    sys.stdout.flush()
    if found.error is not None:
        told = f"row {row.index}, {row.unit} {row.line}: {found.error.marked}"
        tell(console, f"Error: {told}")
        return exits.ROWS_FAILED
    if not display.quiet:
        draw_figures(row, console)
    return exits.OK
