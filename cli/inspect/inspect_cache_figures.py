"""The figures of `inspect-cache`: pool, prefix cache and lifetimes, a line each."""

from collections.abc import Sequence

from pagedrun.cli.report.figure import Figure
from pagedrun.cli.report.group_figures import group_figures
from pagedrun.cli.report.report_figures import sparkline
from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.report.inspect.inspection_sections import (
    InspectedBeams,
    InspectedGroup,
    Inspection,
    Lifetimes,
    PoolMoment,
    RunCounts,
)


def pool_figures(found: Inspection, num_bars: int) -> list[Figure]:
    """Return what the pool is, and what of it was taken at the moment shown and at the peak.

    Its use over time takes `num_bars` characters, which may be none.
    """
    pool, shown, peak = found["pool"], found["moment"], found["peak"]
    if not pool["num_blocks"]:
        return [Figure("blocks", "0", "no row reached the engine")]
    groups, total = found.get("groups", []), show_size(pool["pool_bytes"])
    each = f"{show_size(pool['block_size'] * pool['bytes_per_token'])} each; {total}"
    if groups:
        each = f"{total} in {len(groups)} groups of layers; the first:"
    figures = _groups(groups, shown)
    figures.append(
        Figure("blocks", _count(pool["num_blocks"]), f"of {pool['block_size']} tokens, {each}")
    )
    if shown is not None:
        figures += _moment(f"at step {shown['step']:,}", shown, pool["num_blocks"])
    if peak is not None and (shown is None or shown["step"] != peak["step"]):
        figures += _moment(f"at its peak, step {peak['step']:,}", peak, pool["num_blocks"])
    statistics = found["statistics"]
    most = statistics["peak_blocks"]
    if most is not None and (peak is None or most > peak["allocated"]):
        figures.append(Figure("most allocated at once", _count(most), "as the run counted it"))
    if statistics["shared_blocks_peak"] is not None:
        figures.append(Figure("most shared at once", _count(statistics["shared_blocks_peak"])))
    if num_bars and len(found["use_over_time"]) > 1:
        line = sparkline(found["use_over_time"], num_bars)
        figures.append(Figure("allocated over time", "", line))
    return figures


def _groups(groups: Sequence[InspectedGroup], shown: PoolMoment | None) -> list[Figure]:
    """Return a line for the pool of each group, and one for what was in it at the moment shown."""
    figures = []
    for group, of_pool in zip(groups, group_figures(groups), strict=True):
        figures.append(of_pool)
        counts = group["moment"]
        if counts is not None and shown is not None:
            what = f"at step {shown['step']:,}; shared {counts['shared']:,}, cached "
            figures.append(
                Figure("  allocated", _count(counts["allocated"]), f"{what}{counts['cached']:,}")
            )
    return figures


def _moment(title: str, counts: PoolMoment, num_blocks: int) -> list[Figure]:
    free = counts["free"] + counts["cached"]
    use = f"{counts['utilization']:.1%} of their slots hold a token"
    return [
        Figure(title, "", f"{counts['time_s']:.2f} s into the run"),
        Figure(
            "  allocated",
            _count(counts["allocated"]),
            f"{counts['allocated'] / num_blocks:.1%} of the pool; {use}",
        ),
        Figure("    of these shared", _count(counts["shared"]), f"private {counts['private']:,}"),
        Figure("  free", _count(free), f"of these {counts['cached']:,} cached"),
    ]


def cache_figures(counted: RunCounts, beams: InspectedBeams | None) -> list[Figure]:
    """Return hits, misses and what came of them; what nobody counted is left out."""
    lines = (
        ("hits", counted["hits"], "whole blocks of prompts found in the cache"),
        ("misses", counted["misses"], "whole blocks of prompts that were not"),
    )
    figures = [Figure(label, _count(n), note) for label, n, note in lines if n is not None]
    if counted["hit_rate"] is not None:
        figures.append(Figure("hit rate", f"{counted['hit_rate']:.1%}", "of blocks"))
    if counted["token_hit_rate"] is not None:
        achievable = counted["achievable_hit_rate"]
        note = "of prompt tokens" + (
            "" if achievable is None else f"; {achievable:.1%} was achievable"
        )
        figures.append(Figure("  in tokens", f"{counted['token_hit_rate']:.1%}", note))
    if counted["bytes_saved"] is not None:
        figures.append(Figure("KV not computed again", show_size(counted["bytes_saved"])))
    events = (
        ("evictions", counted["evictions"], "cached blocks lost before their last use"),
        ("copy on write", counted["block_copies"], "blocks copied"),
        ("forks", counted["forks"], "samples and beams that started from another one's blocks"),
    )
    figures += [Figure(label, _count(n), note) for label, n, note in events if n is not None]
    if beams is not None:
        what = (
            f"{beams['freed']:,} of their blocks were held by no other beam and freed immediately"
        )
        figures.append(Figure("beams dropped", _count(beams["died"]), what))
    if counted["swap"] is not None and counted["recompute"] is not None:
        how = f"{_count(counted['swap'])} by swap, {_count(counted['recompute'])} by recompute"
        total = counted["swap"] + counted["recompute"]
        figures.append(Figure("preemptions", _count(total), how if total else ""))
    return figures


def lifetime_figures(lifetimes: Lifetimes, note_width: int, bar: str) -> list[Figure]:
    """Return how long blocks were kept from filling to last release, with a bar for each class."""
    if not lifetimes["num_lives"]:
        return []
    figures = [
        Figure("blocks filled", _count(lifetimes["num_lives"]), "each until its last release"),
        Figure("median", _steps(lifetimes["median"])),
        Figure("90 % at most", _steps(lifetimes["p90"])),
        Figure("longest", _steps(lifetimes["longest"])),
    ]
    most = max(lifetimes["counts"])
    classes = zip(lifetimes["least"], lifetimes["most"], lifetimes["counts"], strict=True)
    for least, last, count in classes:
        if count:
            label = _steps(least) if last == least else f"{least:,} to {_steps(last)}"
            length = max(round(count / most * min(note_width, 40)), 1)
            figures.append(Figure(f"  {label}", _count(count), bar * length))
    return figures


def _steps(number: int) -> str:
    return f"{number:,} {'step' if number == 1 else 'steps'}"


def _count(number: float) -> str:
    return f"{number:,}"
