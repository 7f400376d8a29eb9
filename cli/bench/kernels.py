"""`pagedrun bench kernels`: flags, benchmark and tables."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pagedrun.cli.bench.command import BenchCommand
from pagedrun.cli.bench.options import DEFAULT_SHAPE, Heading, HeadOptions, ResultOptions
from pagedrun.cli.bench.tables import (
    NOTHING,
    Sheet,
    show_ms,
    show_number,
    show_percent,
    show_ratio,
    show_spread,
)
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.bench.model_shapes import SHAPE_NAMES
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.flags import Flag

if TYPE_CHECKING:
    from pagedrun.paged.bench.kernel_timing import (
        CallFigures,
        FailedCall,
        PointFigures,
        PointSizes,
    )
    from pagedrun.paged.bench.kernels import (
        KernelsBench,
        KernelsBenchFigures,
        KernelSweep,
        Part,
        PartFigures,
        SkippedPoint,
    )
    from pagedrun.paged.bench.result import Spread


class _Defaults(NamedTuple):
    block_size: int
    repeat: int
    is_full: bool


# A GPU is faster, and its times are shorter.
DEFAULTS = {"cpu": _Defaults(16, 5, False), "cuda": _Defaults(64, 20, True)}
BUDGETS = (60.0, 480.0)  # of the short sweep, of the full one

HELP = f"""Measure the kernels alone, compared with the limits of the device.

decode: one query per row over contexts of 512 to 32k tokens, with one program for a whole \
context (v1) or several (v2) if the device has both, compared with dense attention in torch on \
the same keys and values. prefix: a shared prefix read once, or by each row. prefill: chunks of a \
prompt. ops: the rest of a layer, and sampling, compared with plain torch.

Kernels are first checked against each other (a wrong kernel gets no figure), then measured in \
turns. A copy or a sum, and a matrix product of the same run are the roofline. Caches are emptied \
before each call. Without --shape, a layer of {DEFAULT_SHAPE} is measured; for Llama 70B, pass \
--heads 64 --kv-heads 8 --head-dim 128.

Examples:

  pagedrun bench kernels
  pagedrun bench kernels --only decode --context 512,8192,32768 --batch 1
  pagedrun bench kernels --only prefix --prefix 1024,4096 --group 16,256 --repeat 9
  pagedrun bench kernels --device cuda --shape qwen3-8b --json > kernels.json
  pagedrun bench kernels --full --budget 600 --save kernels.md
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsOptions(HeadOptions):
    """Shape of the layer, and sizes of the inputs."""

    shape: Annotated[
        str | None,
        Flag(
            f"Random weights in the shape of a known model: {', '.join(SHAPE_NAMES)}.",
            Heading.MODEL,
            "NAME",
            default=DEFAULT_SHAPE,
        ),
    ] = None
    heads: Annotated[
        int | None, Flag("Query heads.", Heading.MODEL, "N", default="the shape's", low=1)
    ] = None
    block_size: Annotated[
        int | None,
        Flag(
            "Tokens per block of KV memory.", Heading.MODEL, "N", default="16, on a GPU 64", low=1
        ),
    ] = None
    contexts: Annotated[
        str | None,
        Flag(
            "Decode: tokens of each row.",
            Heading.SIZES,
            "N,N",
            default="512,2048,8192,32768",
            declared=("--context",),
        ),
    ] = None
    batches: Annotated[
        str | None,
        Flag("Decode: rows.", Heading.SIZES, "N,N", default="1,8,32,128", declared=("--batch",)),
    ] = None
    prefixes: Annotated[
        str | None,
        Flag(
            "Prefix: shared tokens.",
            Heading.SIZES,
            "N,N",
            default="128,512,2048,8192",
            declared=("--prefix",),
        ),
    ] = None
    groups: Annotated[
        str | None,
        Flag(
            "Prefix: rows in a group.",
            Heading.SIZES,
            "N,N",
            default="8,64,256",
            declared=("--group",),
        ),
    ] = None
    chunks: Annotated[
        str | None,
        Flag(
            "Prefill: tokens of the chunk.",
            Heading.SIZES,
            "N,N",
            default="128,512,2048",
            declared=("--chunk",),
        ),
    ] = None
    befores: Annotated[
        str | None,
        Flag(
            "Prefill: tokens before the chunk.",
            Heading.SIZES,
            "N,N",
            default="0,4096",
            declared=("--before",),
        ),
    ] = None
    full: Annotated[
        bool,
        Flag(
            "Use all sizes for lists that are not given: contexts to 32k, prefixes to 16k, "
            "groups to 1024. Default on a GPU.",
            Heading.SIZES,
            declared=("--full",),
        ),
    ] = False
    only: Annotated[
        str | None,
        Flag("Parts to measure.", Heading.SIZES, "PART,PART", default="decode,prefix,prefill,ops"),
    ] = None
    repeat: Annotated[
        int | None,
        Flag("Repetitions of each kernel.", Heading.COMPARED, "N", default="5, on a GPU 20", low=1),
    ] = None
    budget: Annotated[
        float | None,
        Flag(
            "Time budget in seconds; points that would exceed it are skipped and listed.",
            Heading.COMPARED,
            "S",
            default="60, on a GPU or with --full 480",
            low=1.0,
        ),
    ] = None


_OWN = Flags.of(KernelsOptions)
FLAGS = (
    _OWN.only("shape", "heads", "kv_heads", "head_dim", "block_size")
    + GENERATE.only("device", "kernel_set", "dtype")
    + _OWN.only(
        *("contexts", "batches", "prefixes", "groups", "chunks", "befores"),
        *("full", "only", "repeat", "budget"),
    )
    + Flags.of(ResultOptions)
)
# Spelling of the flags.
_SWEPT = {
    "contexts": "--context",
    "batches": "--batch",
    "prefixes": "--prefix",
    "groups": "--group",
    "chunks": "--chunk",
    "befores": "--before",
}


_CAPTIONS: "dict[Part, str]" = {
    "decode": "Contiguous: dense attention in torch on the same keys and values. Over "
    "contiguous: the cost of paging; below 1x, paged attention is faster.",
    "prefix": ("Each row has 64 tokens of its own after the prefix, which are read in both cases."),
    "prefill": "Contiguous: dense attention in torch on the same keys and values.",
    "ops": "PackedLinear is the layer's gate and up projections together.",
}
# Key of the limiting rate of a part, its unit, and the caption of its table.
_RATES: "dict[Part, tuple[_Rate, str, str]]" = {
    "decode": ("gb_per_s", "GB/s", "Bytes of keys and values, queries and answers."),
    "prefix": (
        "tflop_per_s",
        "TFLOP/s",
        "The share of the roofline refers to the limit in each case, bytes or "
        "operations; above 100%, a prefix that is read again remains in a cache.",
    ),
    "prefill": ("tflop_per_s", "TFLOP/s", "Only pairs within the causal mask are counted."),
    "ops": (
        "gb_per_s",
        "GB/s",
        "The share of the roofline refers to the limit, bytes or operations.",
    ),
}
_Rate = Literal["gb_per_s", "tflop_per_s"]
_SIZES: "dict[Part, tuple[_Size, _Size]]" = {
    "decode": ("context", "batch"),
    "prefix": ("prefix", "group"),
    "prefill": ("chunk", "before"),
    "ops": ("op", "rows"),
}
_TITLES: "dict[Part, str]" = {
    "decode": "Decode attention",
    "prefix": "Attention over a shared prefix",
    "prefill": "Prefill attention",
    "ops": "Other ops",
}


def _failures(part: "Part", points: "Seq[PointFigures]") -> list[str]:
    return [
        f"{name} at {' x '.join(_shown_sizes(part, point))}: {each['failed']}."
        for point in points
        for name, each in point["contenders"].items()
        if "failed" in each
    ]


def _middle(ratio: "Spread | None") -> str:
    return NOTHING if ratio is None else show_ratio(ratio.median)


def _milliseconds(contender: "CallFigures | FailedCall") -> str:
    return show_ms(contender["seconds"].median) if "seconds" in contender else "failed"


def _names(points: "Seq[PointFigures]") -> list[str]:
    """Return the contenders of a part, their reference last."""
    names = list(points[0]["contenders"]) if points else []
    return names[1:] + names[:1]


def _shown_sizes(part: "Part", point: "PointSizes") -> list[str]:
    return [_size(point[size]) for size in _SIZES[part]]


def _rate(contender: "CallFigures | FailedCall", key: _Rate) -> str:
    if "failed" in contender:
        return NOTHING
    return f"{show_number(contender[key])} ({show_percent(contender['of_roof'])})"


def _rates(part: "Part", points: "Seq[PointFigures]") -> Sheet:
    key, unit, caption = _RATES[part]
    names = _names(points)
    rows = [
        (*_shown_sizes(part, point), *(_rate(point["contenders"][name], key) for name in names))
        for point in points
    ]
    title = f"{_TITLES[part]}, {unit} (of roofline)"
    return Sheet(title, (*_SIZES[part], *names), rows, caption)


def _size(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _skipped(skipped: "Seq[SkippedPoint]") -> Sheet:
    rows = [
        (each["part"], " x ".join(_shown_sizes(each["part"], each)), _why(each)) for each in skipped
    ]
    return Sheet("Not measured", ("part", "size", "why"), rows)


def _spread(ratio: "Spread | None") -> str:
    return show_spread(ratio, show_ratio)


def _sweep(options: KernelsOptions, is_full: bool) -> "KernelSweep":
    from pagedrun.cli.bench.options import numbers
    from pagedrun.paged.bench.kernels import KernelSweep

    typed = {name: getattr(options, name) for name in _SWEPT}
    chosen: dict[str, Any] = {
        name: numbers(text, _SWEPT[name]) for name, text in typed.items() if text is not None
    }
    sweep = KernelSweep.full() if is_full else KernelSweep.short()
    if options.only:
        chosen["parts"] = list(dict.fromkeys(part.strip() for part in options.only.split(",")))
    return replace(sweep, **chosen)


def _times(part: "Part", points: "Seq[PointFigures]") -> Sheet:
    names = _names(points)
    ratios = list(dict.fromkeys(name for point in points for name in point["ratios"]))
    show = _spread if len(ratios) == 1 else _middle  # spreads of several do not fit
    rows = [
        (
            *_shown_sizes(part, point),
            *(_milliseconds(point["contenders"][name]) for name in names),
            *(show(point["ratios"].get(name)) for name in ratios),
        )
        for point in points
    ]
    caption = " ".join([_CAPTIONS[part], *_failures(part, points)])
    return Sheet(f"{_TITLES[part]}, ms", (*_SIZES[part], *names, *ratios), rows, caption)


def _why(skipped: "SkippedPoint") -> str:
    match skipped["reason"]:
        case "memory":
            needed, free = skipped["needed_bytes"], skipped["free_bytes"]
            return f"takes {show_size(needed)} of memory, {show_size(free)} may be taken"
        case "time":
            return f"takes about {show_number(skipped['estimated_s'])} s, more than --budget leaves"
        case _:
            return skipped["failure"]


def describe_roofline(result: "KernelsBenchFigures") -> str:
    """Return the limits of the device in a line."""
    roofline = result["roof"]
    copied, multiplied = (
        f"{show_number(best / unit)} (usually {show_number(usual / unit)})"
        for best, usual, unit in (
            (roofline.bytes_per_s, roofline.usual_bytes_per_s, 1e9),
            (roofline.flops_per_s, roofline.usual_flops_per_s, 1e12),
        )
    )
    return (
        f"GB/s of a copy or a sum, the faster one: {copied}; TFLOP/s of a {roofline.dtype} matrix "
        f"product: {multiplied}; {roofline.launch_s * 1e6:.1f} us for a call that does nothing"
    )


def describe_shape(result: "KernelsBenchFigures") -> str:
    """Return the layer in a line."""
    shape = result["shape"]
    return (
        f"{shape['name']}: {shape['num_heads']} query heads, {shape['num_kv_heads']} kv heads of "
        f"{shape['head_dim']}, {shape['dtype']}; random data"
    )


def describe_sizes(result: "KernelsBenchFigures") -> str:
    """Return the conditions of the measurement in a line."""
    shape = result["shape"]
    busy = result["others_busy"]
    busy_text = "" if busy is None else f"; other processes kept {busy:.1f} CPUs busy"
    return (
        f"blocks of {shape['block_size']} tokens, scattered; middle of {result['repeat']} turns, "
        f"{show_size(result['flushed_bytes'])} read and written before each{busy_text}"
    )


def kernels_bench(given: TypedValues) -> "KernelsBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.options.reading import read, values_of

    engine = EngineConfig(Path(), **values_of(EngineConfig, given, {"model", "block_size"}))
    return sized_bench(read(KernelsOptions, given), engine)


def sized_bench(options: KernelsOptions, engine: EngineConfig) -> "KernelsBench":
    """Return the benchmark of `options`, on the device and in the dtype of `engine`.

    Raises `UsageError`.
    """
    from pagedrun.paged.bench.kernel_context import KernelShape
    from pagedrun.paged.bench.kernels import KernelsBench
    from pagedrun.paged.bench.model_shapes import Shape
    from pagedrun.paged.execution.device import choose_device

    name = options.shape or DEFAULT_SHAPE
    config = Shape.named(name).config
    device = choose_device(engine.device, engine.kernel_set)
    defaults = DEFAULTS[device.torch_device.type]
    is_full = defaults.is_full or options.full
    return KernelsBench(
        device=device,
        shape=KernelShape.of(
            name,
            config,
            options.block_size or defaults.block_size,
            num_heads=options.heads,
            num_kv_heads=options.kv_heads,
            head_dim=options.head_dim,
        ),
        dtype=device.dtype(engine.dtype, config.dtype),
        sweep=_sweep(options, is_full),
        repeat=options.repeat or defaults.repeat,
        budget_s=options.budget or BUDGETS[is_full],
    )


def kernels_sheets(result: "PartFigures") -> list[Sheet]:
    """Return tables of times and rates for each measured part, then the skipped points."""
    sheets = []
    for part in _SIZES:
        points = result.get(part)
        if points:
            sheets += [_times(part, points), _rates(part, points)]
    if result["skipped"]:
        sheets.append(_skipped(result["skipped"]))
    return sheets


def short_kernels_bench() -> "KernelsBench":
    """Return a benchmark of a few sizes, about twenty seconds long."""
    sizes = KernelsOptions(
        contexts="512,4096",
        batches="1,16",
        prefixes="1024",
        groups="16,64",
        chunks="512",
        befores="0,1024",
        budget=20.0,
    )
    return sized_bench(sizes, EngineConfig(Path()))


KERNELS = BenchCommand(
    name="kernels",
    help=HELP,
    flags=FLAGS,
    bench=kernels_bench,
    described={"layer": describe_shape, "sizes": describe_sizes, "roof": describe_roofline},
    sheets=kernels_sheets,
)

_Size = Literal["context", "batch", "prefix", "group", "chunk", "before", "op", "rows"]
