"""Screen of `plan`: the forecast of a run, and the tree of shared prefixes.

`inspect-cache` draws its tree with the same lines.
"""

import textwrap
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from pagedrun.cli.report.report import MIN_NOTE_WIDTH, NOTE_BEGINS, figure_lines, heading
from pagedrun.cli.report.report_figures import (
    Figure,
    describe_weights,
    group_figures,
    has_blocks,
    sparkline,
    state_figures,
    states_title,
)
from pagedrun.cli.terminal.console import safe
from pagedrun.cli.terminal.units import show_size, show_span
from pagedrun.paged.metrics.inspection_sections import HeldPrefix
from pagedrun.paged.metrics.report_sections import StateFigures, TemplateAdvice, WeightFigures
from pagedrun.paged.planning.forecast_sections import (
    BlockSizeComparison,
    BlockSizeFigures,
    PlanReport,
    ReplicaFigures,
    SharedPrefix,
)

Line = tuple[str, str, str]  # label, value, note
MAX_WIDTH = 110


def draw_forecast(forecast: PlanReport, console: Console) -> None:
    """Print the forecast (the object that `plan --json` gives) on `console`."""
    _draw(console, "Rows", _rows(forecast))
    if not forecast["rows"]["planned"]:
        return
    _draw(console, "Time", _time(forecast))
    _draw(console, "Tokens", _tokens(forecast))
    _draw_tree(console, forecast)
    if replicas := forecast.get("replicas"):
        _draw(console, f"With {_count(replicas['count'])} replicas", replica_lines(replicas))
    _draw(console, "Weights", _weights(forecast["weights"]))
    _draw(console, "KV memory", _memory(forecast))
    if states := forecast.get("states"):
        _draw(console, states_title(forecast.get("library")), _states(states))
    _draw_timeline(console, forecast)
    _draw(console, "What fits into the pool", _batch(forecast))
    if has_blocks(forecast.get("library")):
        _draw_block_sizes(console, forecast["block_sizes"], forecast["kv"]["block_size"])
    _draw_advice(console, forecast["advice"])


def _heading(console: Console, title: str) -> None:
    console.print(heading(title, console, min(console.width, MAX_WIDTH)))


def _draw(console: Console, title: str, lines: Sequence[Line]) -> None:
    _heading(console, title)
    note_width = max(min(console.width, MAX_WIDTH) - NOTE_BEGINS, MIN_NOTE_WIDTH)
    for figure in lines:
        for line in figure_lines(Figure(*figure), note_width):
            console.print(line, soft_wrap=True)


def _weights(weights: WeightFigures) -> list[Line]:
    held = show_size(weights["held_bytes"])
    return [(f"{_count(weights['count'])} weights", held, describe_weights(weights))]


def _states(states: StateFigures) -> list[Line]:
    return [(each.label, each.value, each.note) for each in state_figures(states)]


def _rows(forecast: PlanReport) -> list[Line]:
    rows = forecast["rows"]
    lines: list[Line] = [("rows", _count(rows["total"]), "")]
    if rows["refused"]:
        refused = sum(rows["refused"].values())
        lines.append(("refused", _count(refused), "with the reason under error"))
        lines += [(f"  {code}", _count(n), "") for code, n in rows["refused"].items()]
    if forecast["clamped"]:
        note = "max_tokens reduced to the room left by the prompt"
        lines.append(("cut", _count(forecast["clamped"]), note))
    lines.append(("duplicates", _count(rows["duplicates"]), "answered without being computed"))
    if not rows["is_simulated_whole"]:
        note = "in run order; memory over time and attention refer to these (--simulate-rows)"
        lines.append(("simulated", _count(rows["simulated"]), note))
    return lines


def _time(forecast: PlanReport) -> list[Line]:
    time = forecast["run_time"]
    if time is None:
        note = "not timed on this machine yet; pass --calibrate"
        return [("a run takes", "unknown", note)]
    note = "with loading; answers of one token, to as long as max_tokens allows"
    return [("a run takes", show_span(time["low_s"], time["high_s"]), note)]


def _tokens(forecast: PlanReport) -> list[Line]:
    tokens, prefix = forecast["tokens"], forecast["prefix"]
    read, alone = prefix["attention_bytes_read"], prefix["attention_bytes_without_sharing"]
    achievable = f"{prefix['achievable_hit_rate']:.1%} if prefixes were shared to the token"
    most = "as far as max_tokens allows"
    if forecast["voting"]:
        most += (
            f"; all samples of {_count(forecast['voting'])} rows that vote, of which a run "
            "draws fewer"
        )
    lines: list[Line] = [
        ("prompt tokens", _count(tokens["prompt"]), ""),
        ("from the cache", _count(tokens["cached"]), f"{prefix['hit_rate']:.1%}; {achievable}"),
        ("to compute", _count(tokens["computed"]), ""),
        ("to generate, at most", _count(tokens["generated"]), most),
        ("attention reads", show_size(read), f"of {show_size(alone)} if every row read alone"),
    ]
    if alone:
        lines.append(("  saved", f"{1 - read / alone:.1%}", "by reading shared prefixes once"))
    if tokens["preempted_recomputed"]:
        again = _count(tokens["preempted_recomputed"])
        lines.append(("computed again", again, "after preemptions"))
    return lines


def _draw_tree(console: Console, forecast: PlanReport) -> None:
    found = forecast["tree"]
    _heading(console, "Shared prefixes")
    _wrapped(
        console,
        f"{_count(found['distinct_tokens'])} distinct prompt tokens; "
        f"{_count(found['groups'])} groups of rows that share their first block, "
        f"up to {found['depth']} prefixes deep",
    )
    if not found["top_prefixes"]:
        return
    draw_prefixes(console, found["top_prefixes"])


def _memory(forecast: PlanReport) -> list[Line]:
    kv, preemptions = forecast["kv"], forecast["preemptions"]
    groups = kv.get("groups", [])
    whose = "the first group's" if groups else "the pool"
    pool = f"of {kv['block_size']} tokens, {show_size(kv['pool_bytes'])} in all"
    others = ", ".join(
        f"{show_size(size)} in {name}"
        for name, size in kv["bytes_per_token_as"].items()
        if name != kv["dtype"]
    )
    peak = f"{show_size(kv['peak_bytes'])}, {kv['peak_blocks'] / kv['num_blocks']:.1%} of {whose}"
    lines: list[Line] = [
        ("a token takes", show_size(kv["bytes_per_token"]), f"in {kv['dtype']}; {others}"),
        *((each.label, each.value, each.note) for each in group_figures(groups)),
        ("blocks in the pool", _count(kv["num_blocks"]), pool),
        ("needed at most", _count(kv["blocks_needed"]), "to keep every prefix at full batch"),
        ("in use at peak", _count(kv["peak_blocks"]), peak),
        ("fragmentation at peak", f"{kv['tail_waste']:.1%}", "empty ends of last blocks"),
    ]
    if decoding := forecast.get("decoding"):
        left = show_size(decoding["states"] + decoding["graphs"])
        lines.append(("left for decoding", left, "for captured steps and states of attention"))
    total = preemptions["swap"] + preemptions["recompute"]
    if total:
        note = f"{_count(preemptions['swap'])} by swap, {_count(preemptions['recompute'])} by "
        lines.append(("preemptions", _count(total), f"{note}recompute; a larger pool has fewer"))
    return lines


def _draw_timeline(console: Console, forecast: PlanReport) -> None:
    timeline = forecast["timeline"]
    if not timeline:
        return
    width = min(console.width, MAX_WIDTH) - 4
    used = [record["blocks_used"] for record in timeline]
    if console.options.ascii_only:
        return
    _plain(console, f"  {sparkline(used, width)}")
    steps = f"{_count(forecast['steps']['count'])} steps"
    highest = f"blocks in use, highest bar {_count(max(used))}"
    _plain(console, f"  {highest}{steps.rjust(max(min(len(used), width) - len(highest), 0))}")


def _batch(forecast: PlanReport) -> list[Line]:
    kv, steps = forecast["kv"], forecast["steps"]
    contiguous = kv["contiguous_max_requests"]
    gain = f"; paged {kv['rows_at_once_typical'] / contiguous:.1f}×" if contiguous else ""
    return [
        ("largest batch, run", _count(steps["max_running"]), "rows at once in the simulation"),
        (
            "largest batch, paged",
            _count(kv["rows_at_once_typical"]),
            f"rows of full length; anywhere in the file {_count(kv['rows_at_once_everywhere'])}",
        ),
        (
            "contiguous",
            _count(contiguous),
            f"rows of {_count(forecast['tokens']['longest_row'])} tokens in the same memory{gain}",
        ),
    ]


def _draw_block_sizes(console: Console, compared: BlockSizeComparison, current: int) -> None:
    _heading(console, "Block sizes for this file")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for name in ("    size", "to compute", "blocks", "at peak", "fragmentation"):
        table.add_column(name, justify="right")
    table.add_column("")
    for each in compared["sizes"]:
        size = each["block_size"]
        marks = (
            ("now", current),
            ("best", compared["best"]),
            ("fewest", compared["most_hits"]),
            ("least", compared["least_memory"]),
        )
        table.add_row(
            str(size),
            _count(each["computed_tokens"]),
            _count(each["peak_blocks"]),
            show_size(each["peak_bytes"]),
            f"{each['tail_waste']:.1%}",
            ", ".join(word for word, other in marks if size == other),
            style="bold" if size == compared["best"] else "",
        )
    console.print(table)
    _wrapped(console, _cost(compared, current))


def _cost(compared: BlockSizeComparison, current: int) -> str:
    """Say what the best block size gives against the one in force, or costs against the least."""
    by_size = {each["block_size"]: each for each in compared["sizes"]}
    best, now = by_size[compared["best"]], by_size[current]
    if best is not now:
        return (
            f"--block-size {best['block_size']} instead of {current}: "
            f"{_change(best, now, 'computed_tokens', 'fewer prompt tokens')}, "
            f"{_change(best, now, 'peak_bytes', 'less memory')}"
        )
    hits, memory = by_size[compared["most_hits"]], by_size[compared["least_memory"]]
    if hits is best and memory is best:
        return f"no other size computes fewer prompt tokens or uses less memory than {current}"
    gains = []
    if hits is not best:
        fewer = _change(hits, best, "computed_tokens", "fewer prompt tokens")
        gains.append(f"{fewer} with {hits['block_size']}")
    if memory is not best:
        less = _change(memory, best, "peak_bytes", "less memory")
        gains.append(f"{less} with {memory['block_size']}")
    return f"compared with prompts and answers, smaller blocks gain little: {', '.join(gains)}"


def _change(
    one: BlockSizeFigures,
    other: BlockSizeFigures,
    name: Literal["computed_tokens", "peak_bytes"],
    down: str,
) -> str:
    """Return how much more or less of something one has; `down` is the word for less of it."""
    change = one[name] / other[name] - 1 if other[name] else 0.0
    return f"{abs(change):.1%} {'more ' + down.partition(' ')[2] if change > 0 else down}"


def _draw_advice(console: Console, advice: TemplateAdvice | None) -> None:
    _heading(console, "Order of the prompts' parts")
    if advice is None:
        _plain(console, "  not checked: the input is a stream and was read once")
    elif not advice["found"]:
        _plain(console, f"  nothing to gain (tried on {_count(advice['sample_rows'])} rows)")
    else:
        for each in advice["found"]:
            _wrapped(console, f"• {each['sentence']}")
        _plain(console, f"  (tried on {_count(advice['sample_rows'])} rows)")


def _plain(console: Console, line: str) -> None:
    console.print(Text(safe(line)), soft_wrap=True)


def _wrapped(console: Console, sentence: str) -> None:
    for line in textwrap.wrap(safe(sentence), min(console.width, MAX_WIDTH) - 4):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _count(number: int) -> str:
    return f"{number:,}"


def replica_lines(replicas: ReplicaFigures) -> list[tuple[str, str, str]]:
    """Return label, value and note of each figure."""
    again, most = replicas["split_prefix_tokens"], replicas["computed_at_most"]
    efficiency = f"{replicas['expected_efficiency']:.1%}"
    return [
        ("units", f"{replicas['units']:,}", "rows assigned to a replica together"),
        ("computed again", f"{again:,}", "at most: prefixes with rows in several units"),
        ("to compute in all", f"{most:,}", "prompt tokens, at most, if no row runs twice"),
        ("expected efficiency", efficiency, "of equally fast replicas, without loading the model"),
    ]


TEXT_CHARS = 60


def draw_prefixes(console: Console, prefixes: Sequence[SharedPrefix | HeldPrefix]) -> None:
    """Print the prefixes below each other's `parent`, which is a place in `prefixes` or None.

    Each has `tokens`, `rows` and `tokens_saved`; it may have `bytes_saved` and a `text`.
    """
    tree = Tree(Text("  largest savings"), guide_style="dim")
    nodes: dict[int | None, Tree] = {None: tree}
    # A prefix may come before the shorter one that it continues.
    left = dict(enumerate(prefixes))
    while left:
        for place, prefix in list(left.items()):
            if prefix["parent"] in nodes:
                nodes[place] = nodes[prefix["parent"]].add(_line(prefix))
                del left[place]
    console.print(tree)


def _line(prefix: SharedPrefix | HeldPrefix) -> Text:
    shown = Text(no_wrap=True, overflow="ellipsis")
    shown.append(f"{prefix['tokens']:,} {'token' if prefix['tokens'] == 1 else 'tokens'}", "bold")
    shown.append(f" × {prefix['rows']:,} rows, saves {prefix['tokens_saved']:,}")
    if "bytes_saved" in prefix:
        shown.append(f" ({show_size(prefix['bytes_saved'])})")
    if text := prefix.get("text"):
        shown.append(f"  {safe(' '.join(text.split()), TEXT_CHARS)}", "dim")
    return shown
