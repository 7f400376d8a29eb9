"""`pagedrun bench prefix`: flags, benchmark and tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pagedrun.cli.bench.command import BenchCommand
from pagedrun.cli.bench.options import DEFAULT_SHAPE, Heading, ModelOptions, ResultOptions
from pagedrun.cli.bench.tables import (
    NOTHING,
    Sheet,
    describe_model,
    show_ms,
    show_number,
    show_ratio,
    show_spread,
)
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.flags import Flag

if TYPE_CHECKING:
    from pagedrun.paged.bench.prefix import (
        ModeFigures,
        PrefixBench,
        PrefixBenchFigures,
        PrefixPointFigures,
    )

DEFAULT_LAYERS = 2
HELP = f"""Measure the cost of a shared prefix, by its length and its number of rows.

Each point is one group of rows, run in three ways in turns: prefix computed and read once, \
computed once but read by every row, and neither. In the last two, rows read as fast as rows \
without a shared prefix; --no-prefix-once does not, since it has to give the same bytes. Shows \
rows per second, the attention of a decode step and the whole step. Without --model or --shape it \
runs {DEFAULT_SHAPE} cut to {DEFAULT_LAYERS} layers.

Examples:

  pagedrun bench prefix
  pagedrun bench prefix --prefix 0,1024,4096 --group 16,256 --repeat 5
  pagedrun bench prefix --shape qwen3-8b --layers 1 --dtype bfloat16 --json > prefix.json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOptions:
    """Prefixes and groups to measure, and the number of repetitions."""

    prefix_lengths: Annotated[
        str, Flag("Prefix lengths, in tokens.", Heading.ROWS, "N,N", declared=("--prefix",))
    ] = "0,128,512,1024,2048,4096"
    group_sizes: Annotated[
        str,
        Flag("Numbers of rows that share the prefix.", Heading.ROWS, "N,N", declared=("--group",)),
    ] = "1,4,16,64,256"
    unique: Annotated[
        int, Flag("Tokens of each prompt after the prefix.", Heading.ROWS, "N", low=1)
    ] = 16
    output: Annotated[int, Flag("Tokens to generate per row.", Heading.ROWS, "N", low=2)] = 16
    repeat: Annotated[int, Flag("Runs of each point.", Heading.COMPARED, "N", low=1)] = 2
    budget: Annotated[
        float,
        Flag(
            "Time budget in seconds; points that would exceed it are skipped and listed.",
            Heading.COMPARED,
            "S",
            low=1.0,
        ),
    ] = 240.0


FLAGS = (
    Flags.of(ModelOptions)
    + GENERATE.only("revision")
    + Flags.of(PrefixOptions)
    + GENERATE.only(
        *("device", "dtype", "block_size", "num_blocks", "kv_cache_memory_bytes"),
        *("kernel_set", "activations", "kv_cache_dtype", "gpu_memory_utilization"),
        *("enforce_eager", "max_num_batched_tokens"),
    )
    + Flags.of(ResultOptions)
)


# Names of paged.bench.prefix.Mode, whose import loads torch.
MODES = ("prefix once", "re-read", "no caching")

_Figure = Literal["rows_per_s", "decode_attention_s", "decode_step_s"]
_Gain = Literal["end_to_end", "decode_attention", "decode_step"]


def _busiest(result: "PrefixBenchFigures") -> str:
    """Return the largest use of CPUs by other processes."""
    busy = [mode["others_busy"] for point in result["points"] for mode in point["modes"].values()]
    return f"Other processes kept up to {max(busy, default=0.0):.1f} CPUs busy during a run."


def _gain(point: "PrefixPointFigures", name: str, key: _Gain) -> str:
    ratio = point["ratios"].get(name)
    return NOTHING if ratio is None else show_spread(ratio[key], show_ratio)


def _middle(mode: "ModeFigures | None", key: _Figure, show: Callable[[float], str]) -> str:
    spread = None if mode is None else mode[key]
    return NOTHING if spread is None else show(spread.median)


def _place(point: "PrefixPointFigures") -> tuple[str, str]:
    return f"{point['prefix']:,}", f"{point['group']:,}"


def _sheet(
    result: "PrefixBenchFigures",
    title: str,
    key: _Figure,
    show: Callable[[float], str],
    ratio: _Gain,
    caption: str,
) -> Sheet:
    rows = [
        (
            *_place(point),
            *(_middle(point["modes"].get(mode), key, show) for mode in MODES),
            _gain(point, "once_over_reread", ratio),
            _gain(point, "caching_over_none", ratio),
        )
        for point in result["points"]
        if point["modes"]
    ]
    return Sheet(
        title, ("prefix", "rows", *MODES, "over re-read", "over no caching"), rows, caption
    )


def _skipped(result: "PrefixBenchFigures") -> str:
    skipped = [
        f"{point['prefix']:,} x {point['group']:,} {each['mode']} (about "
        f"{show_number(each['estimated_s'])} s)"
        for point in result["points"]
        for each in point["skipped"]
    ]
    if not skipped:
        return "Every point was run."
    return f"Not run, to stay within --budget: {', '.join(skipped)}."


def describe_sweep(result: "PrefixBenchFigures") -> str:
    """Return the workload in a line."""
    rows = result["workload"]
    return (
        f"one group of rows at a time, each prefix + {rows['unique']} unique + {rows['output']} "
        f"out; random tokens, greedy; middle of {result['repeat']}"
    )


def prefix_bench(given: TypedValues) -> "PrefixBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.options import bench_model, numbers
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.prefix import PrefixBench

    options, model = read(PrefixOptions, given), read(ModelOptions, given)
    if model == ModelOptions():
        model = ModelOptions(layers=DEFAULT_LAYERS)
    return PrefixBench(
        model=bench_model(model, read(RunOptions, given).revision),
        prefix_lengths=numbers(options.prefix_lengths, "--prefix"),
        group_sizes=numbers(options.group_sizes, "--group"),
        unique=options.unique,
        output=options.output,
        repeat=options.repeat,
        budget_s=options.budget,
        flags=values_of(EngineConfig, given, {"model"}),
    )


def prefix_sheets(result: "PrefixBenchFigures") -> list[Sheet]:
    """Return the tables: rows per second, and the attention of a decode step."""
    num_layers = result["model"]["num_layers"]
    return [
        _sheet(
            result,
            "Rows per second",
            "rows_per_s",
            show_number,
            "end_to_end",
            f"From prompt to last token. {_busiest(result)}",
        ),
        _sheet(
            result,
            f"Attention in a decode step of {num_layers} layers, ms",
            "decode_attention_s",
            show_ms,
            "decode_attention",
            "Median of the steps in which all rows decode; – if the first rows ended before "
            "the last had begun. Re-read and no caching use the kernel for rows without a "
            "shared prefix, which rounds differently and is faster than --no-prefix-once.",
        ),
        _sheet(
            result,
            "A whole decode step, ms",
            "decode_step_s",
            show_ms,
            "decode_step",
            _skipped(result),
        ),
    ]


PREFIX = BenchCommand(
    name="prefix",
    help=HELP,
    flags=FLAGS,
    bench=prefix_bench,
    described={"model": describe_model, "rows": describe_sweep},
    sheets=prefix_sheets,
    has_defaults=True,
)
