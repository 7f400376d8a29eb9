"""`pagedrun bench prefix`."""

from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.options.model_options import DEFAULT_SHAPE, ModelOptions
from pagedrun.cli.bench.options.prefix_options import PrefixOptions
from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.bench.sheets.prefix_sheets import describe_sweep, prefix_sheets
from pagedrun.cli.bench.sheets.spread_text import describe_model
from pagedrun.cli.options.flags import Flags, Given
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.paged.values.engine_config import EngineConfig

if TYPE_CHECKING:
    from pagedrun.cli.bench.session import View
    from pagedrun.paged.bench.runs.prefix import PrefixBench, PrefixBenchFigures

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


FLAGS = (
    Flags.of(ModelOptions)
    + GENERATE.only("revision")
    + Flags.of(PrefixOptions)
    + GENERATE.only(
        *("device", "dtype", "block_size", "num_blocks", "kv_cache_memory_bytes"),
        *("kernel_set", "kv_cache_dtype", "gpu_memory_utilization", "enforce_eager"),
        "max_num_batched_tokens",
    )
    + Flags.of(ResultOptions)
)


def _prefix(context: typer.Context, given: Given) -> None:
    """Measure the cost of a shared prefix, by its length and its number of rows."""
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.options.settings import Settings

    with exits.boundary():
        settings = Settings.of(given, {each.name for each in FLAGS})
        session = Session.of(settings.read(ResultOptions))
        with settings.named():
            session.finish(session.measure(prefix_view(), prefix_bench(settings.given)).to_dict())


prefix = FLAGS.command(_prefix)


def prefix_bench(given: Given) -> "PrefixBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.setting import bench_model, numbers
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.runs.prefix import PrefixBench

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


def prefix_view() -> "View[PrefixBenchFigures]":
    """Return how a result is shown."""
    from pagedrun.cli.bench.session import View

    return View("prefix", {"model": describe_model, "rows": describe_sweep}, prefix_sheets)
