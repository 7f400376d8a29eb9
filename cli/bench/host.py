"""`pagedrun bench host`."""

from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.options.host_options import HostOptions
from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.bench.sheets.host_sheets import describe_host_rows, host_sheets
from pagedrun.cli.options.flags import Flags, Given

if TYPE_CHECKING:
    from pagedrun.cli.bench.session import View
    from pagedrun.paged.bench.host.host import HostBench
    from pagedrun.paged.bench.host.host_figures import HostBenchFigures

HELP = """Measure the host's work in a step, with kernels that cost nothing.

The engine plans, schedules and processes every token as in any run, but the model is one layer \
whose kernels compute nothing and whose tokens are random. The remaining time limits the speed on \
every device. Rows join and finish continually: each number of concurrent rows (--seats) is \
measured with several times as many rows.

Shows generated tokens per second, the time per row in a step in which all rows decode, and the \
time of a step that admits rows. The time per row should not rise with the number of concurrent \
rows. With --as-gpu the steps are launched as on a GPU, and replayed steps and copies are \
counted.

Examples:

  pagedrun bench host
  pagedrun bench host --seats 1024 --repeat 5
  pagedrun bench host --seats 1024 --rows-per-seat 4 --as-gpu
  pagedrun bench host --seats 64,256 --shared 0 --unique 512 --output 16:64 --json > host.json
"""


FLAGS = Flags.of(HostOptions) + Flags.of(ResultOptions)


def _host(context: typer.Context, given: Given) -> None:
    """Measure the host's work in a step, with kernels that cost nothing."""
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.options.reading import read

    with exits.boundary():
        session = Session.of(read(ResultOptions, given))
        session.finish(session.measure(host_view(), host_bench(read(HostOptions, given))).to_dict())


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


def host_view() -> "View[HostBenchFigures]":
    """Return how a result is shown."""
    from pagedrun.cli.bench.session import View

    return View("host", {"rows": describe_host_rows}, host_sheets)
