"""`pagedrun ask`: one question, with its answer streamed to stdout."""

import sys
import time
from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import TypedValues
from pagedrun.cli.options.generate_flags import ASK, GENERATE, AskOptions, Display
from pagedrun.paged.job.signals import JobInterrupted, SignalGuard

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings

HELP = """Ask a model one question; the answer is streamed to stdout.

The text becomes the user message of a chat, or a plain prompt with --raw or if the model has no \
chat template. It follows the files and the text piped in, separated by blank lines. The answer is \
the one that generate gives for the same prompt, byte for byte. Statistics are written to \
stderr.

Examples:

  pagedrun ask "Why is the sky blue?" --model Qwen/Qwen3-0.6B
  pagedrun ask "Summarize this." --file notes.md --model ./model
  git diff | pagedrun ask "Write a commit message." --model ./model
  pagedrun ask "Name three colors." --model ./model --json --quiet

Exit status: 0 answered, 1 engine failure, 2 refused, 3 the engine could not answer it, \
130 interrupted by SIGINT, 143 by SIGTERM, 129 by SIGHUP.
"""

ROW_FLAGS = ("prompt_template", "prompt_field")


def _ask(context: typer.Context, given: TypedValues) -> None:
    """Ask a model one question."""
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings
    from pagedrun.paged.job.inputs.reader import STDIN

    guard = context.obj
    with exits.boundary(guard):
        known = {each.name for each in GENERATE} - {*ROW_FLAGS}
        settings = Settings.of({**given, "input_name": STDIN}, known)
        with settings.named():
            raise typer.Exit(_run(settings, guard))


ask = ASK.command(_ask)


def _run(settings: "Settings", guard: SignalGuard | None) -> int:
    # Lazy: `--help` must start fast.
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()  # before numba and torch are imported
    from pagedrun.cli.options.job_flags import job_config
    from pagedrun.cli.options.reading import question_text
    from pagedrun.cli.report.answer_screen import AnswerWriter, answer_line, show_loading
    from pagedrun.cli.report.report_figures import warn_of_weights
    from pagedrun.cli.terminal.console import note, stderr_console, tell
    from pagedrun.paged.job.output.writer import row_line
    from pagedrun.paged.job.question import Question
    from pagedrun.paged.values.errors import UsageError, option

    began = time.monotonic() if guard is None else guard.began
    options, quiet = settings.read(AskOptions), settings.read(Display).quiet
    console = stderr_console()
    config = job_config(settings)
    for name in ROW_FLAGS:
        if name in settings.given:
            raise UsageError(f"{option(name)} makes prompts of rows, and ask has none")
    text = question_text(
        options.text,
        options.file,
        lambda: None if quiet else note(console, "Waiting for standard input to end"),
    )
    writer = AnswerWriter(sys.stdout, None if quiet else console)
    if guard is not None:
        guard.protect(writer)
    try:
        with show_loading(console, quiet=quiet) as listener:

            def on_text(thought: str, text: str) -> None:
                if not options.json_row and (thought or text):
                    listener.stop()
                    writer.add(thought, text)

            question = Question(config, text)
            warn_of_weights(config.engine, listener)
            answer = question.answer(listener, on_text)
        if options.json_row:
            writer.write_line(row_line(answer.row))
        elif answer.completion is not None and answer.error is None:
            writer.finish(answer.texts)
    except (JobInterrupted, KeyboardInterrupt) as error:
        error.add_note(writer.leave())
        raise
    if answer.error is not None:
        tell(console, f"Error: {answer.error.marked}")
        return exits.REFUSED if answer.completion is None else exits.ROWS_FAILED
    if not quiet:
        note(console, answer_line(answer, time.monotonic() - began), "dim")
    return exits.OK
