"""The `pagedrun` command: subcommands, version, and errors of the command line."""

import sys
from typing import Annotated

import typer

from pagedrun._version import __version__
from pagedrun.cli import exits
from pagedrun.cli.ask import HELP as ASK_HELP
from pagedrun.cli.ask import ask
from pagedrun.cli.bench.app import app as bench_app
from pagedrun.cli.demo import HELP as DEMO_HELP
from pagedrun.cli.demo import demo
from pagedrun.cli.diff import HELP as DIFF_HELP
from pagedrun.cli.diff import diff
from pagedrun.cli.doctor import HELP as DOCTOR_HELP
from pagedrun.cli.doctor import doctor
from pagedrun.cli.evaluate import HELP as EVALUATE_HELP
from pagedrun.cli.evaluate import SETTINGS as EVALUATE_SETTINGS
from pagedrun.cli.evaluate import evaluate
from pagedrun.cli.generate import HELP, GenerateCommand, generate
from pagedrun.cli.help import CommandGroup, CommandLine
from pagedrun.cli.inspect_cache import HELP as INSPECT_CACHE_HELP
from pagedrun.cli.inspect_cache import inspect_cache
from pagedrun.cli.options.pooled_flags import why_not_pooled
from pagedrun.cli.plan import HELP as PLAN_HELP
from pagedrun.cli.plan import plan
from pagedrun.cli.pooled import (
    CLASSIFY_HELP,
    EMBED_HELP,
    RERANK_HELP,
    ClassifyCommand,
    EmbedCommand,
    RerankCommand,
    classify,
    embed,
    rerank,
)
from pagedrun.cli.recipes import app as recipes_app
from pagedrun.cli.show import HELP as SHOW_HELP
from pagedrun.cli.show import show
from pagedrun.cli.terminal.console import stderr_console, tell
from pagedrun.cli.terminal.json_lines import json_stderr
from pagedrun.cli.warmup import HELP as WARMUP_HELP
from pagedrun.cli.warmup import warmup
from pagedrun.paged.job.signals import SignalGuard
from pagedrun.paged.values.foreign_flags import explain

# By the beginning of pydantic's error type.
_NO_SUCH = {"int": "not a whole number", "float": "not a number", "bool": "neither true nor false"}
MAX_SHOWN = 80  # characters of a refused value

app = CommandLine(
    name="pagedrun",
    cls=CommandGroup,
    help="Offline batch inference that plans: every prompt is known before the first token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="generate", help=HELP, cls=GenerateCommand)(generate)
app.command(name="embed", help=EMBED_HELP, cls=EmbedCommand)(embed)
app.command(name="rerank", help=RERANK_HELP, cls=RerankCommand)(rerank)
app.command(name="classify", help=CLASSIFY_HELP, cls=ClassifyCommand)(classify)
app.command(name="plan", help=PLAN_HELP)(plan)
app.command(name="show", help=SHOW_HELP)(show)
app.command(name="ask", help=ASK_HELP)(ask)
app.command(name="demo", help=DEMO_HELP)(demo)
app.command(name="inspect-cache", help=INSPECT_CACHE_HELP)(inspect_cache)
app.command(name="diff", help=DIFF_HELP)(diff)
app.command(name="lm-eval", help=EVALUATE_HELP, context_settings=EVALUATE_SETTINGS)(evaluate)
app.command(name="doctor", help=DOCTOR_HELP)(doctor)
app.command(name="warmup", help=WARMUP_HELP)(warmup)
app.add_typer(bench_app, name="bench")
app.add_typer(recipes_app, name="recipes")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pagedrun {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = None,
) -> None:
    """Offline batch inference that plans: every prompt is known before the first token."""


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run())


def run(guard: SignalGuard | None = None) -> int:
    """Run the command line and return its exit status; `guard` is put into the commands'
    context."""
    with json_stderr(sys.argv[1:]):
        try:
            status = app(prog_name="pagedrun", standalone_mode=False, obj=guard)
        except Exception as error:
            status = _refuse(error)
    return status if isinstance(status, int) else exits.OK


def _refuse(error: Exception) -> int:
    """Print an error of the command line and return the exit status.

    Typer does not export its error types, so they are recognized by their methods.
    """
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        raise error
    _in_own_words(error)
    message = _explained(error) or format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        return exits.REFUSED  # the help was printed
    # Typer repeats pydantic's prefix.
    console = stderr_console()
    tell(console, f"Error: {message.replace(': Value error, ', ': ')}")
    context = getattr(error, "ctx", None)
    if context is not None:
        tell(console, f"Try '{context.command_path} --help' for help.")
    return exits.REFUSED


def _in_own_words(error: Exception) -> None:
    """Replace pydantic's message about a refused value."""
    find = getattr(error.__cause__, "errors", None)
    found = find() if callable(find) else []
    if not found or found[0].get("type") == "value_error":  # raised by pagedrun
        return
    first = found[0]
    typed, bounds = str(first.get("input"))[:MAX_SHOWN], first.get("ctx", {})
    why = f"is {_NO_SUCH.get(str(first.get('type')).partition('_')[0], 'nothing that it takes')}"
    if "ge" in bounds:
        why = f"is less than {bounds['ge']:g}"
    elif "le" in bounds:
        why = f"is more than {bounds['le']:g}"
    error.message = f"{typed!r} {why}"  # type: ignore[attr-defined]


def _explained(error: Exception) -> str | None:
    """Return the hint for a flag of another program or command, None without one."""
    context = getattr(error, "ctx", None)
    flag = getattr(error, "option_name", None)
    if context is None or flag is None:
        return None
    params = context.command.params
    told = explain(flag, {name for each in params for name in each.opts})
    is_pooled = isinstance(context.command, EmbedCommand | RerankCommand | ClassifyCommand)
    return told or (why_not_pooled(flag, context.info_name) if is_pooled else None)
