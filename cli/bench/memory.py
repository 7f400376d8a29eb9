"""`pagedrun bench memory`."""

from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.options.memory_options import MemoryOptions
from pagedrun.cli.bench.options.result_options import PageOptions, ResultOptions
from pagedrun.cli.bench.sheets.memory_sheets import describe_requests, describe_token, memory_sheets
from pagedrun.cli.options.flags import Flags, Given
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions

if TYPE_CHECKING:
    from pagedrun.cli.bench.session import View
    from pagedrun.paged.bench.memory.memory import MemoryBench
    from pagedrun.paged.bench.memory.memory_figures import MemoryBenchFigures
    from pagedrun.paged.bench.memory.model_shape import ModelShape

HELP = """Count the memory saved by paged KV memory, without a model.

The engine's own block pool and scheduler hold requests of random lengths, in blocks and, as in \
engines without paging, with the maximum length reserved for each. Shows the share of that memory \
that stores tokens, by the number of concurrent requests; the memory of a shared system prompt; \
the same requests joining and leaving a pool of fixed size; and other block sizes. Takes seconds. \
Nothing is timed; every figure is counted by the pool. --layers, --kv-heads, --head-dim and \
--dtype describe the model for which bytes are given.

Examples:

  pagedrun bench memory
  pagedrun bench memory --shape qwen3-8b --kv-cache-memory-bytes 40GiB
  pagedrun bench memory --requests 16,64 --mean 900 --std 400 --max-len 8192
  pagedrun bench memory --block-size 64 --shared 1000 --save memory.md
  pagedrun bench memory --html memory.html
"""


_OWN = Flags.of(MemoryOptions)
FLAGS = (
    _OWN.only("shape", "model")
    + GENERATE.only("revision")
    + _OWN
    + Flags.of(ResultOptions).only("save")
    + Flags.of(PageOptions, ResultOptions)
)


def _memory(context: typer.Context, given: Given) -> None:
    """Count the memory saved by paged KV memory, without a model."""
    with exits.boundary():
        _run(given)


memory = FLAGS.command(_memory)


def _run(given: Given) -> None:
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.options.reading import read
    from pagedrun.cli.page.page_file import check_target

    html, result_options = read(PageOptions, given).html, read(ResultOptions, given)
    if html is not None:
        check_target(html, [(result_options.save, "--save file")])
    session = Session.of(result_options)
    result = session.measure(memory_view(), memory_bench(given))
    if html is not None:
        from pagedrun.cli.bench.memory_page import write_memory_page

        write_memory_page(result.figures, memory_view().lines(result), html)
        session.say(f"Page in {html}")
    session.finish(result.to_dict())


def memory_bench(given: Given) -> "MemoryBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.setting import numbers
    from pagedrun.cli.options.reading import read
    from pagedrun.paged.bench.memory.memory import MemoryBench
    from pagedrun.paged.bench.memory.normal_lengths import NormalLengths

    options = read(MemoryOptions, given)
    return MemoryBench(
        shape=_shape(options, read(RunOptions, given).revision),
        lengths=NormalLengths(options.mean, options.std, options.min_len, options.max_len),
        counts=sorted(numbers(options.requests, "--requests")),
        block_size=options.block_size,
        num_shared=options.shared,
        seed=options.seed,
        memory_bytes=options.kv_cache_memory_bytes,
    )


def _shape(options: MemoryOptions, revision: str | None) -> "ModelShape":
    """Return the model that is named, or the usual example, with what is given otherwise."""
    from pagedrun.paged.bench.memory.model_shape import ModelShape
    from pagedrun.paged.bench.model_shapes import Shape
    from pagedrun.paged.models.hub import resolve_model
    from pagedrun.paged.models.model_config import ModelConfig
    from pagedrun.paged.values.errors import UsageError

    model, name = options.model, options.shape
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
        num_layers=options.layers,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        dtype=options.dtype and options.dtype.value,
    )


def memory_view() -> "View[MemoryBenchFigures]":
    """Return how a result is shown."""
    from pagedrun.cli.bench.session import View

    return View("memory", {"token": describe_token, "requests": describe_requests}, memory_sheets)
