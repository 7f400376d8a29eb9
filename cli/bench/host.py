"""`pagedrun bench host`: flags, benchmark and tables."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pagedrun.cli.bench.command import BenchCommand
from pagedrun.cli.bench.options import Heading, ResultOptions
from pagedrun.cli.bench.tables import Sheet, show_ms, show_number, show_spread, show_tokens
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.paged.values.flags import Flag

if TYPE_CHECKING:
    from pagedrun.paged.bench.host import HostBench, HostBenchFigures

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Number of concurrent rows, and their lengths."""

    seats: Annotated[
        str,
        Flag(
            "Numbers of concurrent rows; several times as many rows are run for each.",
            Heading.ROWS,
            "N,N",
        ),
    ] = "128,1024,4096"
    rows_per_seat: Annotated[
        int, Flag("Rows in all for each concurrent row.", Heading.ROWS, "N", low=1)
    ] = 8
    shared: Annotated[
        int, Flag("Tokens of the prompts' shared beginning.", Heading.ROWS, "N", low=0)
    ] = 1024
    unique: Annotated[
        int, Flag("Tokens of each prompt after the shared ones.", Heading.ROWS, "N", low=1)
    ] = 64
    output: Annotated[
        str,
        Flag(
            "Tokens to generate per row: a number, or LOW:HIGH for random lengths.",
            Heading.ROWS,
            "N",
        ),
    ] = "32:256"
    repeat: Annotated[
        int, Flag("Runs for each number of concurrent rows.", Heading.COMPARED, "N", low=1)
    ] = 1
    as_gpu: Annotated[
        bool,
        Flag(
            "Launch steps as on a GPU, one step ahead of their tokens; captured steps "
            "compute nothing.",
            Heading.COMPARED,
        ),
    ] = False
    refill_share: Annotated[
        float | None,
        Flag(
            "Share of the running rows that must end before waiting ones are admitted.",
            Heading.COMPARED,
            "X",
            default="0, 0.0625 with --as-gpu",
            low=0,
            high=0.99,
        ),
    ] = None


FLAGS = Flags.of(HostOptions) + Flags.of(ResultOptions)


def _launches(result: "HostBenchFigures") -> Sheet:
    """Return the device's requests per kind of step."""
    header = (
        *("seats", "steps", "host, ms/step", "with prompts", "replayed", "eager decode"),
        *("captured", "copies/step", "kB/step"),
    )
    rows = []
    for point in result["points"]:
        steps, asked = point["steps"], point["asked"]
        shares = (each / steps for each in (asked.prefills, asked.replays, asked.decodes))
        rows.append(
            (
                f"{point['seats']:,}",
                f"{steps:,}",
                show_spread(point["step_s"], show_ms),
                *(f"{share:.0%}" for share in shares),
                f"{asked.captures}",
                f"{asked.copies / steps:.1f}",
                f"{asked.bytes_copied / steps / 1000:,.0f}",
            )
        )
    return Sheet(
        "Work for a GPU",
        header,
        rows,
        "With prompts: steps that compute tokens of prompts. Replayed: steps whose "
        "generated tokens come from a captured step. Eager decode: steps that compute "
        "them kernel by kernel. Nothing is computed here, and copies are made by the "
        "host.",
    )


def _show_us(seconds: float) -> str:
    return show_number(seconds * 1e6)


def describe_host_rows(result: "HostBenchFigures") -> str:
    """Return the workload in a line."""
    rows = result["workload"]
    return (
        f"{rows['rows_per_seat']} a seat x ({rows['shared']:,} shared + {rows['unique']:,} unique "
        f"+ {show_tokens(rows['output'])} out); random tokens, kernels that cost nothing"
    )


def host_bench(given: TypedValues) -> "HostBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.options import lengths, numbers
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.host import HostBench
    from pagedrun.paged.bench.workload import Lengths

    options = read(HostOptions, given)
    return HostBench(
        seats=sorted(numbers(options.seats, "--seats")),
        output=Lengths.of(lengths(options.output, "--output")),
        **values_of(HostOptions, given, {"seats", "output"}),
    )


def host_sheets(result: "HostBenchFigures") -> list[Sheet]:
    """Return the tables, with a line for each number of concurrent rows."""
    header = ("seats", "rows", "tokens/s", "decode, µs/row", "admission, ms", "total, s")
    rows = [
        (
            f"{point['seats']:,}",
            f"{point['rows']:,}",
            show_spread(point["tokens_per_s"], show_number),
            show_spread(point["decode_s_per_row"], _show_us),
            show_spread(point["admission_step_s"], show_ms),
            show_spread(point["total_s"], show_number),
        )
        for point in result["points"]
    ]
    of_several = f" Middle of {result['repeat']} runs (least…most)." if result["repeat"] > 1 else ""
    own = [
        Sheet(
            "The host's own work",
            header,
            rows,
            "Decode: median of steps in which all rows decode and none is admitted. "
            f"Admission: median of steps that admit rows.{of_several}",
        )
    ]
    return [*own, _launches(result)] if result["as_gpu"] else own


HOST = BenchCommand(
    name="host",
    help=HELP,
    flags=FLAGS,
    bench=host_bench,
    described={"rows": describe_host_rows},
    sheets=host_sheets,
)
