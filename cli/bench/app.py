"""`pagedrun bench`: its subcommands, and a short run of all of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench import accuracy, host, kernels, memory, prefix, throughput
from pagedrun.cli.bench.options import DEFAULT_SHAPE, ResultOptions
from pagedrun.cli.help import CommandLine
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.paged.values.errors import UsageError

if TYPE_CHECKING:
    from pagedrun.cli.bench.session import Bench, View
    from pagedrun.paged.bench.result import Measured

LAYERS = 2
HELP = f"""Measure pagedrun on this machine.

Without a command: a short run of all benchmarks except accuracy, about a minute on two cores, \
with {DEFAULT_SHAPE} cut to {LAYERS} layers.
"""

# How the result of each benchmark is shown.
VIEWS: "dict[str, Callable[[], View[Any]]]" = {
    "throughput": throughput.throughput_view,
    "prefix": prefix.prefix_view,
    "kernels": kernels.kernels_view,
    "memory": memory.memory_view,
    "host": host.host_view,
    "accuracy": accuracy.accuracy_view,
}

app = CommandLine(help=HELP, invoke_without_command=True, rich_markup_mode="rich")
app.command(name="throughput", help=throughput.HELP)(throughput.throughput)
app.command(name="prefix", help=prefix.HELP)(prefix.prefix)
app.command(name="kernels", help=kernels.HELP)(kernels.kernels)
app.command(name="memory", help=memory.HELP)(memory.memory)
app.command(name="host", help=host.HELP)(host.host)
app.command(name="accuracy", help=accuracy.HELP)(accuracy.accuracy)


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

    session = Session.of(read(ResultOptions, given))
    session.finish(
        {
            name: session.measure(VIEWS[name](), short).to_dict()
            for name, short in _short_benches().items()
        }
    )


def _short_benches() -> "dict[str, Bench[Measured]]":
    """Return those that measure the machine, in forms that take seconds rather than minutes."""
    from pagedrun.cli.bench.kernels import short_kernels_bench
    from pagedrun.cli.bench.options import comparison
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
