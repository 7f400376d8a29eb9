"""The result of `bench prefix` as tables."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.spread_text import (
    NOTHING,
    show_ms,
    show_number,
    show_ratio,
    show_spread,
)

if TYPE_CHECKING:
    from pagedrun.paged.bench.runs.prefix import ModeFigures, PrefixBenchFigures, PrefixPointFigures

_Figure = Literal["rows_per_s", "decode_attention_s", "decode_step_s"]
_Gain = Literal["end_to_end", "decode_attention", "decode_step"]
# The names of paged.bench.runs.prefix.Mode, which is not imported here because it takes long.
MODES = ("prefix once", "re-read", "no caching")


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


def _busiest(result: "PrefixBenchFigures") -> str:
    """Return how much others disturbed the point that they disturbed most."""
    busy = [mode["others_busy"] for point in result["points"] for mode in point["modes"].values()]
    return f"Other processes kept up to {max(busy, default=0.0):.1f} CPUs busy during a run."


def describe_sweep(result: "PrefixBenchFigures") -> str:
    """Return the workload in a line."""
    rows = result["workload"]
    return (
        f"one group of rows at a time, each prefix + {rows['unique']} unique + {rows['output']} "
        f"out; random tokens, greedy; middle of {result['repeat']}"
    )


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


def _place(point: "PrefixPointFigures") -> tuple[str, str]:
    return f"{point['prefix']:,}", f"{point['group']:,}"


def _gain(point: "PrefixPointFigures", name: str, key: _Gain) -> str:
    ratio = point["ratios"].get(name)
    return NOTHING if ratio is None else show_spread(ratio[key], show_ratio)


def _middle(mode: "ModeFigures | None", key: _Figure, show: Callable[[float], str]) -> str:
    spread = None if mode is None else mode[key]
    return NOTHING if spread is None else show(spread["median"])


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
