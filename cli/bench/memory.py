"""`pagedrun bench memory`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench import flags
from pagedrun.cli.options import options

if TYPE_CHECKING:
    from pagedrun.paged.bench.memory.memory import MemoryBench
    from pagedrun.paged.bench.memory.model_shape import ModelShape

HELP = """Count what paged KV memory is worth, without a model.

The engine's own block pool and scheduler hold requests of random lengths: in blocks and, as \
engines without paging do, with room reserved for the longest length. Shows the part of that \
memory which stores tokens, by how many requests there are at once; what a shared system prompt \
takes; the same requests as they come and go in one memory; and other block sizes. Takes seconds. \
Nothing is timed; every figure is the pool's own count. --layers, --kv-heads, --head-dim and \
--dtype change the model that bytes are given for.

Examples:

  pagedrun bench memory
  pagedrun bench memory --shape qwen3-8b --kv-cache-memory-bytes 40GiB
  pagedrun bench memory --requests 16,64 --mean 900 --std 400 --max-len 8192
  pagedrun bench memory --block-size 64 --shared 1000 --save memory.md
  pagedrun bench memory --html memory.html
"""


def memory(  # one parameter for each flag: this is where Typer reads them from
    context: typer.Context,
    shape: flags.MemoryShape = None,
    model: flags.Model = None,
    revision: options.Revision = None,
    layers: flags.MemoryLayers = None,
    kv_heads: flags.KvHeads = None,
    head_dim: flags.HeadDim = None,
    dtype: flags.MemoryDtype = None,
    requests: flags.Requests = "10,25,50,100,200",
    mean: flags.Mean = 500.0,
    std: flags.Std = 200.0,
    min_len: flags.MinLen = 200,
    max_len: flags.MaxLen = 2048,
    shared: flags.SystemTokens = 200,
    seed: flags.Seed = 0,
    block_size: flags.MemoryBlockSize = 16,
    kv_cache_memory_bytes: flags.MemoryBytes = None,
    save: flags.Save = None,
    html: flags.Html = None,
    json_result: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Count what paged KV memory is worth, without a model."""
    with exits.boundary():
        _run(context.params)


def _run(given: Mapping[str, Any]) -> None:
    from pagedrun.cli.bench.session import Session, lines_of
    from pagedrun.cli.page.target import check_target

    html, save = given["html"], given["save"]
    if html is not None:
        check_target(html, [(save, "--save file")])
    session = Session.of_flags(given)
    result = session.measure("memory", memory_bench(given))
    if html is not None:
        from pagedrun.cli.bench.memory_page import write_memory_page

        write_memory_page(result, lines_of(result), html)
        session.say(f"Page in {html}")
    session.finish(result)


def memory_bench(given: Mapping[str, Any]) -> "MemoryBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.setting import numbers
    from pagedrun.paged.bench.memory.memory import MemoryBench
    from pagedrun.paged.bench.memory.normal_lengths import NormalLengths

    return MemoryBench(
        shape=_shape(given),
        lengths=NormalLengths(given["mean"], given["std"], given["min_len"], given["max_len"]),
        counts=sorted(numbers(given["requests"], "--requests")),
        block_size=given["block_size"],
        num_shared=given["shared"],
        seed=given["seed"],
        memory_bytes=given["kv_cache_memory_bytes"],
    )


def _shape(given: Mapping[str, Any]) -> "ModelShape":
    """Return the model that is named, or the usual example, with what is given otherwise."""
    from pagedrun.paged.bench.memory.model_shape import ModelShape
    from pagedrun.paged.models.hub import resolve_model
    from pagedrun.paged.models.model_config import ModelConfig
    from pagedrun.paged.models.shapes import Shape
    from pagedrun.paged.values.errors import UsageError

    model, name, revision = given["model"], given["shape"], given["revision"]
    if model is not None and name is not None:
        raise UsageError("--model and --shape exclude each other: give the one that is meant")
    if model is None and revision is not None:
        raise UsageError("--revision needs --model with a name on the hub")
    if model is not None:
        folder = resolve_model(model, revision)
        shape = ModelShape.of_config(folder.name, ModelConfig.from_folder(folder))
    elif name is not None:
        shape = ModelShape.of_config(name, Shape.named(name).config)
    else:
        shape = ModelShape()
    return shape.changed(
        num_layers=given["layers"],
        num_kv_heads=given["kv_heads"],
        head_dim=given["head_dim"],
        dtype=given["dtype"] and given["dtype"].value,
    )
