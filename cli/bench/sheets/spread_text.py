"""A spread as people read it: the middle, and how far the measurements lay apart."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedrun.paged.bench.runs.lengths import TokenCount
    from pagedrun.paged.bench.runs.prefix import PrefixBenchFigures
    from pagedrun.paged.bench.runs.throughput import ThroughputBenchFigures
    from pagedrun.paged.bench.spread import SpreadFigures


NOTHING = "–"


def show_spread(spread: "SpreadFigures | None", show: Callable[[float], str]) -> str:
    """Return `12.3 (11.9…12.8)`, the middle alone if it is the only one, – without any."""
    if spread is None:
        return NOTHING
    if spread["count"] == 1:
        return show(spread["median"])
    return f"{show(spread['median'])} ({show(spread['low'])}…{show(spread['high'])})"


def show_ratio(ratio: float) -> str:
    """Return a ratio with three digits."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x" if ratio < 100 else f"{ratio:.0f}x"


def show_number(number: float) -> str:
    """Return a number with at least three digits that matter."""
    for least, form in ((100, "{:,.0f}"), (10, "{:.1f}"), (1, "{:.2f}"), (0.1, "{:.3f}")):
        if number >= least:
            return form.format(number)
    return f"{number:.4f}"


def show_ms(seconds: float) -> str:
    """Return seconds as milliseconds, without the unit."""
    return show_number(seconds * 1e3)


def show_percent(part: float) -> str:
    """Return a part of a whole as whole percents, small ones with a digit more."""
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


def show_tokens(length: "TokenCount") -> str:
    """Return a number of tokens, or the range that rows draw theirs from."""
    if isinstance(length, int):
        return f"{length:,}"
    return f"{length['low']:,} to {length['high']:,}"


def describe_model(result: "ThroughputBenchFigures | PrefixBenchFigures") -> str:
    """Return the model in a line."""
    model = result["model"]
    return (
        f"{model['name']}, {model['num_layers']} layers, {model['vocab_size']:,} tokens in the "
        f"vocabulary, {model['dtype']}; weights {model['weights']}"
    )
