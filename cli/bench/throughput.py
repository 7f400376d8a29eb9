"""`pagedrun bench throughput`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench import flags
from pagedrun.cli.options import options

if TYPE_CHECKING:
    from pagedrun.paged.bench.runs.throughput import ThroughputBench

HELP = """Measure prompt and generated tokens per second on this machine.

Rows of random tokens with a shared beginning, answered greedily to their full length. With \
--compare or --against, two settings or two programs run them in turns in one process, and the \
ratios are printed.

--compare takes a flag of the engine without its dashes, or: "alone", every row reads the shared \
prefix for itself, as fast as rows that share nothing (no-prefix-once gives the same bytes, and is \
slower for it); "no-sharing", and computes and stores it as well.

Examples:

  pagedrun bench throughput --rows 64 --shared 2048 --unique 64 --output 32
  pagedrun bench throughput --rows 256 --shared 0 --unique 100:1024 --output 100:1024
  pagedrun bench throughput --compare alone --repeat 5
  pagedrun bench throughput --rows 16 --shared 448 --output 64 --against transformers
  pagedrun bench throughput --shape llama-3.1-8b --layers 4 --profile
  pagedrun bench throughput --model ./model --save result.json
"""


def throughput(  # one parameter for each flag: this is where Typer reads them from
    context: typer.Context,
    shape: flags.Shape = None,
    layers: flags.Layers = None,
    model: flags.Model = None,
    revision: options.Revision = None,
    rows: flags.Rows = 64,
    shared: flags.Shared = 2048,
    unique: flags.Unique = "64",
    output: flags.Output = "32",
    group_size: flags.GroupSize = None,
    against: flags.Against = None,
    hf_batch: flags.HfBatch = None,
    compare: flags.Compare = None,
    repeat: flags.Repeat = None,
    profile: flags.Profile = False,
    device: options.DeviceFlag = None,
    dtype: options.DtypeFlag = None,
    max_model_len: options.MaxModelLen = None,
    block_size: options.BlockSize = None,
    num_blocks: options.NumBlocks = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    kernel_set: options.KernelSetFlag = None,
    kv_cache_dtype: options.KvCacheDtypeFlag = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = None,
    enforce_eager: options.EnforceEager = None,
    reproducible: options.Reproducible = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    prefix_caching: options.PrefixCaching = None,
    prefix_once: options.PrefixOnce = None,
    preemption_mode: options.PreemptionFlag = None,
    swap_space_bytes: options.SwapSpaceBytes = None,
    save: flags.Save = None,
    json_result: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Measure prompt and generated tokens per second on this machine."""
    with exits.boundary():
        _run(context.params)


def _run(given: Mapping[str, Any]) -> None:
    from pagedrun.cli.bench.session import Session

    session = Session.of_flags(given)
    session.finish(session.measure("throughput", throughput_bench(given)))


def throughput_bench(given: Mapping[str, Any]) -> "ThroughputBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.setting import bench_model, comparison, engine_flags, lengths
    from pagedrun.paged.bench.runs.throughput import ThroughputBench
    from pagedrun.paged.bench.runs.workload import Workload

    compare, against = given["compare"], given["against"]
    repeat = given["repeat"] or (3 if compare or against else 1)
    return ThroughputBench(
        model=bench_model(given),
        workload=Workload(
            rows=given["rows"],
            shared=given["shared"],
            unique=lengths(given["unique"], "--unique"),
            output=lengths(given["output"], "--output"),
            group_size=given["group_size"],
        ),
        flags=engine_flags(given),
        comparison=comparison(compare) if compare else None,
        against_transformers=against is flags.Peer.TRANSFORMERS,
        hf_batch=given["hf_batch"],
        repeat=repeat,
        profile=given["profile"],
    )
