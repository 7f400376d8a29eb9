"""`pagedrun bench`: its subcommands, and a short run of all of them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.accuracy import ACCURACY
from pagedrun.cli.bench.command import Bench, BenchCommand
from pagedrun.cli.bench.host import HOST
from pagedrun.cli.bench.kernels import KERNELS, short_kernels_bench
from pagedrun.cli.bench.memory import MEMORY
from pagedrun.cli.bench.options import DEFAULT_SHAPE, PageOptions, ResultOptions, comparison
from pagedrun.cli.bench.prefix import PREFIX
from pagedrun.cli.bench.throughput import THROUGHPUT
from pagedrun.cli.help import CommandLine
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.paged.values.errors import UsageError

LAYERS = 2
HELP = f"""Measure pagedrun on this machine.

Without a command: a short run of all benchmarks except accuracy, about a minute on two cores, \
with {DEFAULT_SHAPE} cut to {LAYERS} layers.
"""

COMMANDS: tuple[BenchCommand[Any], ...] = (THROUGHPUT, PREFIX, KERNELS, MEMORY, HOST, ACCURACY)


def _runner(command: BenchCommand[Any]) -> Callable[[typer.Context, TypedValues], None]:
    def run(context: typer.Context, given: TypedValues) -> None:
        """Measure, and show, save and print the result as the flags ask."""
        from pagedrun.cli.bench.session import Session
        from pagedrun.cli.options.reading import read

        with exits.boundary(), ExitStack() as stack:
            if command.has_defaults:
                from pagedrun.cli.options.settings import Settings

                settings = Settings.of(given, {each.name for each in command.flags})
                given = settings.given
                stack.enter_context(settings.named())
            session = Session(read(ResultOptions, given), read(PageOptions, given).html)
            session.finish(session.measure(command, command.bench(given)))

    return run


app = CommandLine(help=HELP, invoke_without_command=True, rich_markup_mode="rich")
for each in COMMANDS:
    app.command(name=each.name, help=each.help)(each.flags.command(_runner(each)))


def _bench(context: typer.Context, given: TypedValues) -> None:
    """Measure pagedrun on this machine."""
    with exits.boundary():
        if context.invoked_subcommand is None:
            _run_all(given)
        elif given.get("json_result") or given.get("quiet"):
            name = context.invoked_subcommand
            raise UsageError(f"write --json and --quiet after the command: bench {name} --json")


app.callback()(Flags.of(ResultOptions).only("json_result", "quiet").command(_bench))


def _run_all(given: TypedValues) -> None:
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.options.reading import read

    session = Session(read(ResultOptions, given))
    commands = {each.name: each for each in COMMANDS}
    session.finish(
        {name: session.measure(commands[name], each) for name, each in _short_benches().items()}
    )


def _short_benches() -> dict[str, Bench[object]]:
    """Return short forms of the benchmarks of this machine, by the names of their commands."""
    from pagedrun.paged.bench.host import HostBench
    from pagedrun.paged.bench.memory import MemoryBench
    from pagedrun.paged.bench.prefix import PrefixBench
    from pagedrun.paged.bench.throughput import ThroughputBench
    from pagedrun.paged.bench.workload import BenchModel, Workload

    model = BenchModel.from_shape(DEFAULT_SHAPE, LAYERS)
    return {
        "throughput": ThroughputBench(
            model,
            Workload(rows=32, shared=512, unique=32, output=16),
            comparison=comparison("no-sharing"),
            repeat=3,
            profile=True,
        ),
        "prefix": PrefixBench(model, (0, 512, 2048), (1, 16, 64), budget_s=60.0),
        "kernels": short_kernels_bench(),
        "memory": MemoryBench(),
        "host": HostBench(seats=(128,)),
    }
