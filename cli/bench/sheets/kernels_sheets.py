"""The result of `bench kernels` as tables."""

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Literal

from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.spread_text import (
    NOTHING,
    show_ms,
    show_number,
    show_percent,
    show_ratio,
    show_spread,
)
from pagedrun.cli.terminal.units import show_size

if TYPE_CHECKING:
    from pagedrun.paged.bench.kernels.kernel_point import (
        CallFigures,
        FailedCall,
        Place,
        PointFigures,
    )
    from pagedrun.paged.bench.kernels.kernel_sweep import Part
    from pagedrun.paged.bench.kernels.kernels import KernelsBenchFigures, PartFigures, SkippedPoint
    from pagedrun.paged.bench.spread import SpreadFigures

_Size = Literal["context", "batch", "prefix", "group", "chunk", "before", "op", "rows"]
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
_CAPTIONS: "dict[Part, str]" = {
    "decode": "Contiguous: dense attention in torch on the same keys and values. Over "
    "contiguous: the cost of paging; below 1x, paged attention is faster.",
    "prefix": ("Each row has 64 tokens of its own after the prefix, which are read in both cases."),
    "prefill": "Contiguous: dense attention in torch on the same keys and values.",
    "ops": "PackedLinear is the layer's gate and up projections together.",
}
# What bounds a part, as the result has it, its unit, and what to know of the figures.
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


def kernels_sheets(result: "PartFigures") -> list[Sheet]:
    """Return two tables for each part that was measured, times and rates, then what was not."""
    sheets = []
    for part in _SIZES:
        points = result.get(part)
        if points:
            sheets += [_times(part, points), _rates(part, points)]
    if result["skipped"]:
        sheets.append(_skipped(result["skipped"]))
    return sheets


def describe_sizes(result: "KernelsBenchFigures") -> str:
    """Return how it was measured, in a line."""
    shape = result["shape"]
    busy = result["others_busy"]
    busy_text = "" if busy is None else f"; other processes kept {busy:.1f} CPUs busy"
    return (
        f"blocks of {shape['block_size']} tokens, scattered; middle of {result['repeat']} turns, "
        f"{show_size(result['flushed_bytes'])} read and written before each{busy_text}"
    )


def describe_shape(result: "KernelsBenchFigures") -> str:
    """Return the layer in a line."""
    shape = result["shape"]
    return (
        f"{shape['name']}: {shape['num_heads']} query heads, {shape['num_kv_heads']} kv heads of "
        f"{shape['head_dim']}, {shape['dtype']}; random data"
    )


def describe_roofline(result: "KernelsBenchFigures") -> str:
    """Return what the device can do, in a line."""
    roofline = result["roof"]
    copied, multiplied = (
        f"{show_number(best / unit)} (usually {show_number(usual / unit)})"
        for best, usual, unit in (
            (roofline["bytes_per_s"], roofline["usual_bytes_per_s"], 1e9),
            (roofline["flops_per_s"], roofline["usual_flops_per_s"], 1e12),
        )
    )
    return (
        f"GB/s of a copy, read + written: {copied}; TFLOP/s of a {roofline['dtype']} matrix "
        f"product: {multiplied}; {roofline['launch_s'] * 1e6:.1f} us for a call that does nothing"
    )


def _times(part: "Part", points: "Seq[PointFigures]") -> Sheet:
    names = _names(points)
    ratios = list(dict.fromkeys(name for point in points for name in point["ratios"]))
    show = _spread if len(ratios) == 1 else _middle  # there is room for one
    rows = [
        (
            *_place(part, point),
            *(_milliseconds(point["contenders"][name]) for name in names),
            *(show(point["ratios"].get(name)) for name in ratios),
        )
        for point in points
    ]
    caption = " ".join([_CAPTIONS[part], *_failures(part, points)])
    return Sheet(f"{_TITLES[part]}, ms", (*_SIZES[part], *names, *ratios), rows, caption)


def _rates(part: "Part", points: "Seq[PointFigures]") -> Sheet:
    key, unit, caption = _RATES[part]
    names = _names(points)
    rows = [
        (*_place(part, point), *(_rate(point["contenders"][name], key) for name in names))
        for point in points
    ]
    title = f"{_TITLES[part]}, {unit} (of roofline)"
    return Sheet(title, (*_SIZES[part], *names), rows, caption)


def _place(part: "Part", point: "Place") -> list[str]:
    return [_size(point[size]) for size in _SIZES[part]]


def _names(points: "Seq[PointFigures]") -> list[str]:
    """Return the contenders of a part, what they are held against last."""
    names = list(points[0]["contenders"]) if points else []
    return names[1:] + names[:1]


def _size(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _milliseconds(contender: "CallFigures | FailedCall") -> str:
    return show_ms(contender["seconds"]["median"]) if "seconds" in contender else "failed"


def _rate(contender: "CallFigures | FailedCall", key: _Rate) -> str:
    if "failed" in contender:
        return NOTHING
    return f"{show_number(contender[key])} ({show_percent(contender['of_roof'])})"


def _spread(ratio: "SpreadFigures | None") -> str:
    return show_spread(ratio, show_ratio)


def _middle(ratio: "SpreadFigures | None") -> str:
    return NOTHING if ratio is None else show_ratio(ratio["median"])


def _failures(part: "Part", points: "Seq[PointFigures]") -> list[str]:
    return [
        f"{name} at {' x '.join(_place(part, point))}: {each['failed']}."
        for point in points
        for name, each in point["contenders"].items()
        if "failed" in each
    ]


def _skipped(skipped: "Seq[SkippedPoint]") -> Sheet:
    rows = [(each["part"], " x ".join(_place(each["part"], each)), _why(each)) for each in skipped]
    return Sheet("Not measured", ("part", "size", "why"), rows)


def _why(skipped: "SkippedPoint") -> str:
    match skipped["reason"]:
        case "memory":
            needed, free = skipped["needed_bytes"], skipped["free_bytes"]
            return f"takes {show_size(needed)} of memory, {show_size(free)} may be taken"
        case "time":
            return f"takes about {show_number(skipped['estimated_s'])} s, more than --budget leaves"
        case _:
            return skipped["failure"]
