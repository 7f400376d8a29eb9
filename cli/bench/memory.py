"""`pagedrun bench memory`: flags, benchmark, tables and page."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

from pagedrun.cli.bench.command import BenchCommand
from pagedrun.cli.bench.options import Heading, HeadOptions, PageOptions, ResultOptions
from pagedrun.cli.bench.tables import NOTHING, Sheet, show_number, show_ratio
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.bench.model_shapes import SHAPE_NAMES
from pagedrun.paged.values.flags import Flag, Form

if TYPE_CHECKING:
    from pagedrun.cli.page.document import Document, Headline
    from pagedrun.paged.bench.memory import (
        CacheShape,
        MemoryBench,
        MemoryBenchFigures,
        SavedBlocks,
        Sharing,
    )

HELP = """Count the memory saved by paged KV memory, without a model.

The engine's own block pool and scheduler hold requests of random lengths, in blocks and, as in \
engines without paging, with the maximum length reserved for each. Shows the share of that memory \
that stores tokens, by the number of concurrent requests; the memory of a shared system prompt; \
the same requests joining and leaving a memory of fixed size, also with one piece of exactly its \
length for each (first fit: external fragmentation); and other block sizes. Takes seconds. Nothing \
is timed; every figure is counted. --layers, --kv-heads, --head-dim and \
--dtype describe the model for which bytes are given.

Examples:

  pagedrun bench memory
  pagedrun bench memory --shape qwen3-8b --kv-cache-memory-bytes 40GiB
  pagedrun bench memory --requests 16,64 --mean 900 --std 400 --max-len 8192
  pagedrun bench memory --block-size 64 --shared 1000 --save memory.md
  pagedrun bench memory --html memory.html
"""


class StoredDtype(StrEnum):
    """Number formats of keys and values."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8 = "fp8"
    INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions(HeadOptions):
    """Shape of the model, and lengths of the requests."""

    shape: Annotated[
        str | None,
        Flag(
            f"A known model's layers and heads: {', '.join(SHAPE_NAMES)}.",
            Heading.MODEL,
            "NAME",
            default="32 layers of 32 kv heads of 128",
        ),
    ] = None
    model: Annotated[
        str | None,
        Flag("Model folder, or hub id org/name, instead of a shape.", Heading.MODEL, "NAME"),
    ] = None
    layers: Annotated[
        int | None, Flag("Layers.", Heading.MODEL, "N", default="the shape's", low=1)
    ] = None
    dtype: Annotated[
        StoredDtype | None,
        Flag("Number format of keys and values.", Heading.MODEL, default="the model's, or float16"),
    ] = None
    requests: Annotated[
        str,
        Flag(
            "Numbers of concurrent requests; the largest is also used for requests that "
            "join and leave.",
            Heading.LENGTHS,
            "N,N",
        ),
    ] = "10,25,50,100,200"
    mean: Annotated[
        float, Flag("Mean number of tokens of a request.", Heading.LENGTHS, "N", low=0.0)
    ] = 500.0
    std: Annotated[float, Flag("Their standard deviation.", Heading.LENGTHS, "N", low=0.0)] = 200.0
    min_len: Annotated[int, Flag("Minimum number of tokens.", Heading.LENGTHS, "N", low=1)] = 200
    max_len: Annotated[
        int,
        Flag(
            "Maximum number of tokens, reserved for each contiguous request.",
            Heading.LENGTHS,
            "N",
            low=1,
        ),
    ] = 2048
    shared: Annotated[
        int, Flag("Tokens of a system prompt; 0: none.", Heading.LENGTHS, "N", low=0)
    ] = 200
    seed: Annotated[int, Flag("Seed of the random lengths.", Heading.LENGTHS, "N", low=0)] = 0
    block_size: Annotated[
        int,
        Flag(
            "Tokens per block of KV memory; other sizes are shown for comparison.",
            Heading.LENGTHS,
            "N",
            low=1,
        ),
    ] = 16
    kv_cache_memory_bytes: Annotated[
        int | None,
        Flag(
            "Memory for requests that join and leave.",
            Heading.LENGTHS,
            "SIZE",
            default="the memory of 10 contiguous requests",
            form=Form.SIZE,
        ),
    ] = None


_OWN = Flags.of(MemoryOptions)
FLAGS = (
    _OWN.only("shape", "model")
    + GENERATE.only("revision")
    + _OWN.only("layers")
    + _OWN
    + Flags.of(ResultOptions).only("save")
    + Flags.of(PageOptions, ResultOptions)
)


CHART_CHARS = 44
DONE = "·"  # after the end of the shorter run

Way = Literal["contiguous", "paged"]
WAYS: tuple[Way, ...] = ("contiguous", "paged")
# Runs of requests that join and leave, and their labels.
FLOWS: dict[Literal["contiguous", "first_fit", "paged"], str] = {
    "contiguous": "contiguous",
    "first_fit": "first fit",
    "paged": "paged",
}
_Charted = Literal["running", "tokens", "blocks_used"]

_HEIGHTS = {"at_once": 280, "sharing": 260, "over_time": 520, "block_sizes": 320}


def _at_once(result: "MemoryBenchFigures") -> Sheet:
    rows = [
        (
            f"{each['requests']:,}",
            f"{each['tokens']:,}",
            *(f"{each[way].utilization:.1%}" for way in WAYS),
            *(show_size(each[way].bytes) for way in WAYS),
            show_ratio(each["contiguous"].bytes / each["paged"].bytes),
        )
        for each in result["at_once"]
    ]
    header = ("requests", "tokens", *WAYS, *WAYS, "less")
    return Sheet(
        "Memory that stores tokens, all requests at once",
        header,
        rows,
        f"Contiguous: {result['lengths']['high']:,} tokens reserved for each request. Paged: "
        f"blocks of {result['block_size']:,} tokens. Both are held in the engine's block pool.",
    )


def _block_sizes(result: "MemoryBenchFigures") -> Sheet:
    rows = [
        (
            f"{each.block_size:,}",
            f"{each.utilization:.1%}",
            show_size(each.bytes),
            f"{each.empty_per_request:.1f}",
            f"{each.expected_empty:.1f}",
            f"{each.over_time.max_running:,}",
            show_number(each.over_time.mean_running),
            f"{each.over_time.steps:,}",
        )
        for each in result["block_sizes"]
    ]
    flows = result["over_time"]
    header = ("size", "utilised", "held", "empty", "expected", "most", "in flight", "steps")
    return Sheet(
        f"Block sizes, {flows['requests']:,} requests",
        header,
        rows,
        "Utilized, held and empty slots of a request: all concurrently. Expected: (size "
        "- 1) / 2, half a block, if a request may end anywhere in its last block. Most, "
        "in flight and steps: as they join and leave.",
    )


def _chart(result: "MemoryBenchFigures", name: str, key: _Charted) -> list[tuple[str, str, str]]:
    """Return a line for each form of sharing, with steps and counts on the same axes.

    For blocks, whose sizes differ, full height is all of the memory.
    """
    from pagedrun.cli.report.report_figures import sparkline

    flows = {way: result["over_time"][way] for way in WAYS}
    num_steps = max(flow.steps for flow in flows.values())
    values = {way: [each[key] for each in flow.timeline] for way, flow in flows.items()}
    highest = max(max(each) for each in values.values())
    width = min(CHART_CHARS, num_steps)
    rows = []
    for way, flow in flows.items():
        top = flow.blocks if key == "blocks_used" else highest
        num_chars = max(1, -(-width * flow.steps // num_steps))
        bars = sparkline(values[way], num_chars, top)
        rows.append((f"{name}, {way}", bars.ljust(width, DONE), f"{max(values[way]):,}"))
    return rows


def _charts(result: "MemoryBenchFigures") -> Sheet:
    rows = [
        *_chart(result, "in flight", "running"),
        *_chart(result, "tokens stored", "tokens"),
        *_chart(result, "blocks held", "blocks_used"),
    ]
    return Sheet(
        "The same, from the first step to the last",
        ("", "over time", "highest"),
        rows,
        "Highest: among the steps drawn. Blocks: full height is the whole pool, of blocks of "
        f"{result['lengths']['high']:,} and of {result['block_size']:,} tokens. {DONE} All "
        "requests are done.",
    )


def _fragmentation(result: "MemoryBenchFigures") -> Sheet:
    flows = result["over_time"]
    flow = flows["first_fit"]
    rows = [
        (
            "requests refused although enough is free",
            f"{flow.refused_requests:,} of {flows['requests']:,}",
        ),
        ("steps that begin so", f"{flow.refused_steps:,} of {flow.steps:,}"),
        ("slots free then", f"{flow.free_slots:,.0f} of {flow.blocks:,}"),
        ("holes", f"{flow.holes:.1f}"),
        ("slots of the largest hole", f"{flow.largest_hole:,.0f}"),
        ("free slots outside it", f"{flow.external_fragmentation:.1%}"),
    ]
    return Sheet(
        "External fragmentation, in pieces of exact lengths",
        ("", "first fit"),
        rows,
        "Ended requests leave holes between the pieces. The next request is refused if no hole has "
        "room for it, although together they have; in blocks, any free block will do. Slots, holes "
        "and shares: means over these steps.",
    )


def _headlines(result: "MemoryBenchFigures") -> "list[Headline]":
    from pagedrun.cli.page.document import Headline

    most = result["at_once"][-1]
    contiguous, paged = (most[way] for way in WAYS)
    flows = {way: result["over_time"][way] for way in WAYS}
    sharing = result["sharing"]
    headlines = [
        Headline(
            f"of held slots store a token, {most['requests']:,} requests at once",
            f"{paged.utilization:.1%}",
            f"{contiguous.utilization:.1%} if contiguous",
        ),
        Headline(
            "less memory for the same requests",
            show_ratio(contiguous.bytes / paged.bytes),
            f"in blocks of {result['block_size']:,} tokens",
        ),
        Headline(
            "requests in flight, on average",
            show_number(flows["paged"].mean_running),
            f"{show_number(flows['contiguous'].mean_running)} if contiguous, in the same memory",
        ),
    ]
    if sharing is None:
        return headlines
    prompt = sharing["prompt"]
    return [
        *headlines,
        Headline(
            f"blocks for {sharing['requests']:,} answers to a shared prompt",
            f"{prompt['blocks']:,}",
            f"{prompt['blocks_alone']:,} alone; {prompt['blocks_diverged']:,} when one continues",
        ),
    ]


def _over_time(result: "MemoryBenchFigures") -> Sheet:
    flows = result["over_time"]
    rows = [
        (
            label,
            f"{flow.max_running:,}",
            show_number(flow.mean_running),
            f"{flow.utilization:.1%}",
            f"{flow.memory_used:.1%}",
            f"{flow.peak_blocks / flow.blocks:.0%}",
            f"{flow.preemptions:,}",
            f"{flow.steps:,}",
        )
        for label, flow in ((label, flows[way]) for way, label in FLOWS.items())
    ]
    contiguous, paged = (flows[way] for way in WAYS)
    gains = [
        _ratio(paged.max_running, contiguous.max_running),
        _ratio(paged.mean_running, contiguous.mean_running),
        _ratio(paged.utilization, contiguous.utilization),
        _ratio(paged.memory_used, contiguous.memory_used),
    ]
    fewer = _ratio(contiguous.steps, paged.steps)
    header = ("", "most", "in flight", "of held", "of all", "at peak", "preempted", "steps")
    return Sheet(
        f"{flows['requests']:,} requests that join and leave in {show_size(flows['memory_bytes'])}",
        header,
        [*rows, ("gain", *gains, NOTHING, NOTHING, fewer)],
        "Requests in flight; slots that store a token, of those held and of all; means "
        "over the run. At peak: blocks held of the pool's. First fit: one piece of exactly its "
        "length for each request, which must be known beforehand. Gain: paged over contiguous. "
        "Half of each request is its prompt. A step gives every request in flight one token; "
        "steps with more requests take longer, which is not measured here.",
    )


def _ratio(above: float, below: float) -> str:
    return show_ratio(above / below) if below else NOTHING


def _shape(options: MemoryOptions, revision: str | None) -> "CacheShape":
    """Return the named model, or the default example, with the given fields replaced."""
    from pagedrun.paged.bench.memory import CacheShape
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
        shape = CacheShape.of_config(folder.name, ModelConfig.from_folder(folder))
    elif name is not None:
        shape = CacheShape.of_config(name, Shape.named(name).config)
    else:
        shape = CacheShape()
    return shape.changed(
        num_layers=options.layers,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        dtype=options.dtype and options.dtype.value,
    )


def _sharing(sharing: "Sharing") -> Sheet:
    prompt = sharing["prompt"]
    saved: dict[str, SavedBlocks] = {
        "answers to one prompt": prompt,
        "rows that share it": sharing["rows"],
    }
    rows = [
        (
            name,
            f"{each['blocks_alone']:,}",
            f"{each['blocks']:,}",
            show_size(each["bytes_saved"]),
        )
        for name, each in saved.items()
    ]
    copied = f"{prompt['copies']} block{'' if prompt['copies'] == 1 else 's'} copied"
    return Sheet(
        f"A system prompt of {sharing['tokens']:,} tokens, {sharing['requests']:,} requests",
        ("", "blocks alone", "shared", "saved"),
        rows,
        f"When one of the answers continues: {copied}, {prompt['blocks_diverged']:,} "
        "held. Rows have as many tokens of their own as in the first line above, and "
        "share whole blocks.",
    )


def describe_requests(result: "MemoryBenchFigures") -> str:
    """Return the requests in a line."""
    lengths = result["lengths"]
    return (
        f"{lengths['low']:,} to {lengths['high']:,} tokens, normal around {lengths['mean']:g} with "
        f"deviation {lengths['std']:g}, seed {lengths['seed']}"
    )


def describe_token(result: "MemoryBenchFigures") -> str:
    """Return the bytes of a token and the model in a line."""
    shape = result["shape"]
    return (
        f"{shape.bytes_per_token:,} bytes of keys and values, in {shape.num_layers} layers "
        f"of {shape.num_kv_heads} kv heads of {shape.head_dim}, {shape.dtype} "
        f"({shape.name})"
    )


def memory_bench(given: TypedValues) -> "MemoryBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.bench.options import numbers
    from pagedrun.cli.options.reading import read
    from pagedrun.paged.bench.memory import MemoryBench, NormalLengths

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


def memory_document(result: "MemoryBenchFigures", lines: Seq[tuple[str, str]]) -> "Document":
    """Return the page of the figures; `lines` describe the run."""
    from pagedrun.cli.page.document import Document
    from pagedrun.paged.bench.result import plain

    drawn = ("at_once", "sharing", "over_time", "block_sizes", "block_size", "shape")
    return Document(
        template="memory.html",
        scripts=("memory.js", "try_memory.js", "try_panel.js"),
        values={
            "headlines": _headlines(result),
            "lines": lines,
            "tables": memory_tables(result),
            "heights": _HEIGHTS,
        },
        data={name: plain(figure) for name, figure in result.items() if name in drawn},
    )


def memory_sheets(result: "MemoryBenchFigures") -> list[Sheet]:
    """Return the tables: at once, the system prompt, over time, holes, and block sizes."""
    tables = memory_tables(result)
    last = [tables.pop(name) for name in ("fragmentation", "block_sizes")]
    return [*tables.values(), _charts(result), *last]


def memory_tables(result: "MemoryBenchFigures") -> dict[str, Sheet]:
    """Return the tables without charts, by the names of their sections."""
    found = result["sharing"]
    sharing = {} if found is None else {"sharing": _sharing(found)}
    return {
        "at_once": _at_once(result),
        **sharing,
        "over_time": _over_time(result),
        "fragmentation": _fragmentation(result),
        "block_sizes": _block_sizes(result),
    }


MEMORY = BenchCommand(
    name="memory",
    help=HELP,
    flags=FLAGS,
    bench=memory_bench,
    described={"token": describe_token, "requests": describe_requests},
    sheets=memory_sheets,
    page=memory_document,
)
