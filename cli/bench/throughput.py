"""`pagedrun bench throughput`."""

from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.options.model_options import ModelOptions
from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.bench.options.throughput_options import ThroughputOptions
from pagedrun.cli.bench.sheets.spread_text import describe_model
from pagedrun.cli.bench.sheets.throughput_sheets import describe_rows, throughput_sheets
from pagedrun.cli.options.flags import Flags, Given
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.paged.values.engine_config import EngineConfig

if TYPE_CHECKING:
    from pagedrun.cli.bench.session import View
    from pagedrun.paged.bench.runs.throughput import ThroughputBench, ThroughputBenchFigures

HELP = """Measure prompt and generated tokens per second on this machine.

Rows of random tokens with a shared beginning are answered greedily to their full length. With \
--compare or --against, two settings or two programs run them in turns in one process, and the \
ratios are printed. --against needs a checkout of pagedrun's repository.

--compare takes a flag of the engine without its dashes, or "alone": every row reads the shared \
prefix itself, as fast as rows without one (no-prefix-once gives the same bytes, and is therefore \
slower); or "no-sharing": every row also computes and stores the prefix itself.

Examples:

  pagedrun bench throughput --rows 64 --shared 2048 --unique 64 --output 32
  pagedrun bench throughput --rows 256 --shared 0 --unique 100:1024 --output 100:1024
  pagedrun bench throughput --compare alone --repeat 5
  pagedrun bench throughput --rows 16 --shared 448 --output 64 --against transformers
  pagedrun bench throughput --rows 1 --shared 0 --quantization int8 --compare quantization=none
  pagedrun bench throughput --shape llama-3.1-8b --layers 4 --profile
  pagedrun bench throughput --model ./model --save result.json
"""


FLAGS = (
    Flags.of(ModelOptions)
    + GENERATE.only("revision")
    + Flags.of(ThroughputOptions)
    + GENERATE.only(
        *("device", "dtype", "quantization", "max_model_len", "block_size", "num_blocks"),
        *("kv_cache_memory_bytes", "kernel_set", "kv_cache_dtype", "gpu_memory_utilization"),
        *("enforce_eager", "reproducible", "max_num_seqs", "max_num_batched_tokens"),
        *("prefix_caching", "prefix_once", "preemption_mode", "swap_space_bytes"),
    )
    + Flags.of(ResultOptions)
)


def _throughput(context: typer.Context, given: Given) -> None:
    """Measure prompt and generated tokens per second on this machine."""
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.options.settings import Settings

    with exits.boundary():
        settings = Settings.of(given, {each.name for each in FLAGS})
        session = Session.of(settings.read(ResultOptions))
        with settings.named():
            session.finish(
                session.measure(throughput_view(), throughput_bench(settings.given)).to_dict()
            )


throughput = FLAGS.command(_throughput)


def throughput_bench(given: Given) -> "ThroughputBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.peer import transformers_peer
    from pagedrun.cli.bench.setting import bench_model, comparison, lengths
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.runs.throughput import ThroughputBench
    from pagedrun.paged.bench.runs.workload import Workload

    options = read(ThroughputOptions, given)
    is_compared = bool(options.compare or options.against)
    return ThroughputBench(
        model=bench_model(read(ModelOptions, given), read(RunOptions, given).revision),
        workload=Workload(
            rows=options.rows,
            shared=options.shared,
            unique=lengths(options.unique, "--unique"),
            output=lengths(options.output, "--output"),
            group_size=options.group_size,
        ),
        flags=values_of(EngineConfig, given, {"model"}),
        comparison=comparison(options.compare) if options.compare else None,
        peer=transformers_peer(options.hf_batch) if options.against else None,
        repeat=options.repeat or (3 if is_compared else 1),
        profile=options.profile,
    )


def throughput_view() -> "View[ThroughputBenchFigures]":
    """Return how a result is shown."""
    from pagedrun.cli.bench.session import View

    return View("throughput", {"model": describe_model, "rows": describe_rows}, throughput_sheets)
