"""`pagedrun bench prefix`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench import flags
from pagedrun.cli.options import options

if TYPE_CHECKING:
    from pagedrun.paged.bench.runs.prefix import PrefixBench

DEFAULT_LAYERS = 2
HELP = f"""Measure what a shared prefix costs, by its length and by how many rows share it.

Each point is one group of rows, run three ways in turns: prefix computed and read once, computed \
once but read by every row for itself, and neither. In the last two, rows read as fast as rows \
that share nothing; --no-prefix-once does not, since it has to give the same bytes. Shows rows per \
second, the attention of a decode step and the whole step. Without --model or --shape it runs \
{flags.DEFAULT_SHAPE} cut to {DEFAULT_LAYERS} layers.

Examples:

  pagedrun bench prefix
  pagedrun bench prefix --prefix 0,1024,4096 --group 16,256 --repeat 5
  pagedrun bench prefix --shape qwen3-8b --layers 1 --dtype bfloat16 --json > prefix.json
"""


def prefix(  # one parameter for each flag: this is where Typer reads them from
    context: typer.Context,
    shape: flags.Shape = None,
    layers: flags.Layers = None,
    model: flags.Model = None,
    revision: options.Revision = None,
    prefix_lengths: flags.Prefixes = "0,128,512,1024,2048,4096",
    group_sizes: flags.Groups = "1,4,16,64,256",
    unique: flags.UniqueShort = 16,
    output: flags.OutputShort = 16,
    repeat: flags.RepeatPoint = 2,
    budget: flags.Budget = 240.0,
    device: options.DeviceFlag = None,
    dtype: options.DtypeFlag = None,
    block_size: options.BlockSize = None,
    num_blocks: options.NumBlocks = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    kernel_set: options.KernelSetFlag = None,
    kv_cache_dtype: options.KvCacheDtypeFlag = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = None,
    enforce_eager: options.EnforceEager = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    save: flags.Save = None,
    json_result: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Measure what a shared prefix costs, by its length and by how many rows share it."""
    with exits.boundary():
        _run(context.params)


def _run(given: Mapping[str, Any]) -> None:
    from pagedrun.cli.bench.session import Session

    session = Session.of_flags(given)
    session.finish(session.measure("prefix", prefix_bench(given)))


def prefix_bench(given: Mapping[str, Any]) -> "PrefixBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.setting import bench_model, engine_flags, numbers
    from pagedrun.paged.bench.runs.prefix import PrefixBench

    if given["model"] is None and given["shape"] is None and given["layers"] is None:
        given = {**given, "layers": DEFAULT_LAYERS}
    return PrefixBench(
        model=bench_model(given),
        prefix_lengths=numbers(given["prefix_lengths"], "--prefix"),
        group_sizes=numbers(given["group_sizes"], "--group"),
        unique=given["unique"],
        output=given["output"],
        repeat=given["repeat"],
        budget_s=given["budget"],
        flags=engine_flags(given),
    )
