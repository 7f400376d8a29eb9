"""`pagedrun bench host`."""

from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.options.host_options import HostOptions
from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.options.flags import Flags, Given

if TYPE_CHECKING:
    from pagedrun.paged.bench.host.host import HostBench

HELP = """Measure what the host does in a step, with kernels that cost nothing.

The engine plans, schedules and looks at every token as in any run, but the model is one layer \
whose kernels compute nothing and whose tokens are random. What is left caps every device, however \
fast it is. Rows enter and finish all the time: each number of seats runs several times as many \
rows.

Shows generated tokens per second, what a row costs in a step where all seats decode, and what a \
step takes that lets rows in. What a row costs should not rise with the number of seats. With \
--as-gpu the steps are launched as on a GPU, and what was replayed and copied is counted.

Examples:

  pagedrun bench host
  pagedrun bench host --seats 1024 --repeat 5
  pagedrun bench host --seats 1024 --rows-per-seat 4 --as-gpu
  pagedrun bench host --seats 64,256 --shared 0 --unique 512 --output 16:64 --json > host.json
"""


FLAGS = Flags.of(HostOptions) + Flags.of(ResultOptions)


def _host(context: typer.Context, given: Given) -> None:
    """Measure what the host does in a step, with kernels that cost nothing."""
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.bench.view import HOST
    from pagedrun.cli.options.reading import read

    with exits.boundary():
        session = Session.of(read(ResultOptions, given))
        session.finish(session.measure(HOST, host_bench(read(HostOptions, given))).to_dict())


host = FLAGS.command(_host)


def host_bench(options: HostOptions) -> "HostBench":
    """Return the benchmark of `options`; raises `UsageError`."""
    from pagedrun.cli.bench.setting import lengths, numbers
    from pagedrun.paged.bench.host.host import HostBench
    from pagedrun.paged.bench.runs.lengths import Lengths

    return HostBench(
        seats=sorted(numbers(options.seats, "--seats")),
        shared=options.shared,
        unique=options.unique,
        output=Lengths.of(lengths(options.output, "--output")),
        repeat=options.repeat,
        rows_per_seat=options.rows_per_seat,
        as_gpu=options.as_gpu,
        refill_share=options.refill_share,
    )
