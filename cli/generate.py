"""`pagedrun generate`: run of a job described by flags."""

import sys
from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.help import PanelCommand
from pagedrun.cli.options.flags import TypedValues
from pagedrun.cli.options.generate_flags import DAILY, GENERATE, Display, ProgressMode, RunOptions
from pagedrun.cli.terminal.console import discard, print_json
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.signals import JobInterrupted, SignalGuard
from pagedrun.paged.values.pooling import PoolingParams, Task

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings
    from pagedrun.paged.metrics.report_sections import JobReport

HELP = """Answer every row of INPUT: one output row each, and a memory report at the end.

A row has a column "prompt", "messages" or "prompt_token_ids". It may have an "id" and its own \
sampling parameters; other columns are returned under "input". Rows are the lines of a .jsonl \
file, the elements of a .json array, the records of a .csv or .tsv file with a header, of a \
.parquet file or of a dataset (a save_to_disk folder, or hf:NAME@CONFIG:SPLIT from the hub or \
its cache); in a .txt file each line is a prompt. A folder of files of one kind is read file by \
file. Rows of OpenAI batch files are answered in OpenAI's format. Answers are written as JSONL, \
or to .csv or .parquet as the input's table with the columns answer, finish_reason and error.

Examples:

  pagedrun generate prompts.jsonl --model Qwen/Qwen3-0.6B
  pagedrun generate prompts.jsonl -o answers.jsonl --model ./model --max-tokens 64
  pagedrun generate rows.jsonl --prompt-template "Translate: {{ text }}" --model ./model
  pagedrun generate rows.jsonl --recipe judge --model ./model
  pagedrun generate rows.csv.gz --prompt-field question --model ./model
  pagedrun generate 'data/*.jsonl' more.csv -o answers.jsonl --model ./model
  pagedrun generate hf:openai/gsm8k@main:test --prompt-field question --model ./model
  pagedrun generate rows.csv -o answers.csv --prompt-template @prompt.jinja --model ./model
  pagedrun generate rows.csv -o out.csv --columns id,json.title --json-schema @s.json --model ./m
  pagedrun generate rows.jsonl --html memory.html --model ./model
  pagedrun generate - -o - --model ./model < rows.jsonl > answers.jsonl

Exit status: 0 all rows ok, 1 engine failure, 2 refused, 3 some rows failed, 4 stopped early, \
130 interrupted by SIGINT, 143 by SIGTERM, 129 by SIGHUP: resumable, like 1 and 4.
"""


def _generate(context: typer.Context, given: TypedValues) -> None:
    """Answer every row of INPUT, and report the use of memory."""
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings

    guard = context.obj
    with exits.boundary(guard):
        settings = Settings.of(given)
        with settings.named():
            raise typer.Exit(run(settings, guard))


generate = GENERATE.command(_generate)


class GenerateCommand(PanelCommand):
    """Typer command of `generate`."""

    daily = DAILY


def run(settings: "Settings", guard: SignalGuard | None, task: Task | None = None) -> int:
    """Run the job of the settings, show its result, and return the exit status.

    task: of rows that get vectors, scores or labels instead of answers.
    """
    # Lazy: `--help` must start fast.
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()  # before numba and torch are imported
    from pagedrun.cli.options.job_flags import job_config, warn_of_model
    from pagedrun.cli.page.page_file import check_job_page, write_job_page
    from pagedrun.cli.progress.progress import show_progress
    from pagedrun.cli.report.end_of_run import draw_end, end_event
    from pagedrun.cli.report.report import failures
    from pagedrun.cli.report.report_figures import warn_of_weights
    from pagedrun.cli.terminal.console import note, stderr_console, tell
    from pagedrun.cli.terminal.json_lines import use_json_lines
    from pagedrun.paged.job.job import run_job
    from pagedrun.paged.job.output.output_layout import OutputLayout
    from pagedrun.paged.job.planned.timed_run import save_timings

    display, page = settings.read(Display), settings.read(RunOptions).html
    if display.progress is ProgressMode.JSON:  # also set by the configuration file
        use_json_lines()
    console = stderr_console()
    config = job_config(settings)
    if task is not None:
        config = config.with_task(settings.read(PoolingParams, task=task))
    if page is not None:
        check_job_page(config, page)
    if "model" not in settings.given and not display.quiet:
        note(console, f"No --model: using the bundled demo model ({config.engine.model})")
    with show_progress(display.progress, console, quiet=display.quiet) as listener:
        warn_of_model(settings, config, listener)
        if config.replicas.replicas is None:  # replicas may have other processors
            warn_of_weights(config.engine, listener)
        result = run_job(config, listener, guard=guard)
        save_timings(config.engine, result.report)
    output = OutputLayout.of(config).shown
    try:
        is_json = display.progress is ProgressMode.JSON
        if display.quiet and result.num_failed:
            tell(console, failures(result, output))
        elif not (display.quiet or is_json):
            draw_end(result, output, display.report_view, console)
        if display.json_report:
            _print_json(result.report)
        if page is not None:
            write_job_page(result, config, page)
            if not display.quiet:
                note(console, f"page → {page}", "bold")
        if is_json and not display.quiet:
            console.file.write(end_event(result, output))
    except (JobInterrupted, OutputError) as error:
        error.add_note("every row is written")
        raise
    return exits.ROWS_FAILED if result.num_failed else exits.OK


def _print_json(report: "JobReport") -> None:
    try:
        print_json(report)
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        message = f"the report cannot be written to standard output ({error.strerror})"
        raise OutputError(message, error) from error
