"""Screen of `plan`: forecast of a run, and the tree of shared prefixes, also used by
`inspect-cache`.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from pagedrun.cli.report.report import draw_heading, draw_section
from pagedrun.cli.report.report_figures import (
    SOURCES,
    Figure,
    describe_weights,
    group_figures,
    has_blocks,
    sparkline,
    state_figures,
    states_title,
)
from pagedrun.cli.terminal.console import safe
from pagedrun.cli.terminal.units import commas, counted, show_seconds, show_size, show_span
from pagedrun.paged.metrics.inspection_sections import HeldPrefix
from pagedrun.paged.metrics.report_sections import TemplateAdvice, WeightFigures
from pagedrun.paged.planning.forecast_sections import (
    BlockSizeComparison,
    BlockSizeFigures,
    DraftFigures,
    Limit,
    PassForecast,
    PlanReport,
    ReplicaFigures,
    SharedPrefix,
)

if TYPE_CHECKING:
    from pagedrun.paged.job.planned.text_plan import TextPlan  # which imports much

MAX_WIDTH = 110


def draw_forecast(forecast: PlanReport, console: Console) -> None:
    """Print the forecast (the object that `plan --json` gives) on `console`."""
    draw_section(console, "Rows", _rows(forecast), MAX_WIDTH)
    if not forecast["rows"]["planned"]:
        return
    draw_section(console, "Time", _time(forecast), MAX_WIDTH)
    draw_section(console, "Tokens", _tokens(forecast), MAX_WIDTH)
    _draw_tree(console, forecast)
    if replicas := forecast.get("replicas"):
        draw_section(
            console,
            f"With {replicas['count']:,} replicas",
            replica_lines(replicas),
            MAX_WIDTH,
        )
    draw_section(console, "Weights", _weights(forecast["weights"]), MAX_WIDTH)
    if streaming := forecast.get("streaming"):
        figures = list(_streaming(streaming, forecast["weights"]))
        draw_section(console, "Weights read in each pass", figures, MAX_WIDTH)
    draw_section(console, "KV memory", _memory(forecast), MAX_WIDTH)
    if states := forecast.get("states"):
        draw_section(
            console, states_title(forecast.get("library")), state_figures(states), MAX_WIDTH
        )
    _draw_timeline(console, forecast)
    if drafts := forecast["steps"].get("drafts"):
        figures = _drafts(drafts, forecast["steps"]["count"])
        draw_section(console, "Drafts", figures, MAX_WIDTH)
    draw_section(console, "What fits into the pool", _batch(forecast), MAX_WIDTH)
    if has_blocks(forecast.get("library")):
        _draw_block_sizes(console, forecast["block_sizes"], forecast["kv"]["block_size"])
    _draw_advice(console, forecast["advice"])


def draw_text_plan(plan: "TextPlan", console: Console) -> None:
    """Print the plan of `embed`, `rerank` or `classify` on `console`."""
    rows, texts, tokens = plan["rows"], plan["texts"], plan["tokens"]
    lines = [Figure("rows", commas(rows["total"]))]
    if rows["refused"]:
        refused = sum(rows["refused"].values())
        lines.append(Figure("refused", commas(refused), "with the reason under error"))
        lines += [Figure(f"  {code}", commas(n)) for code, n in rows["refused"].items()]
    draw_section(console, "Rows", lines, MAX_WIDTH)
    if not texts["total"]:
        return
    time = plan["run_time"]
    found, note = "unknown", "not timed on this machine yet; the first run is"
    if time is not None:
        found, note = show_span(time["low_s"], time["high_s"]), "with loading"
    draw_section(console, "Time", [Figure("a run takes", found, note)], MAX_WIDTH)
    same = texts["total"] - texts["distinct"]
    told = [
        Figure("texts", commas(texts["total"]), f"the longest of {texts['longest']:,} tokens"),
        Figure("duplicates", commas(same), f"{same / texts['total']:.1%}, computed once"),
    ]
    draw_section(console, "Texts", told, MAX_WIDTH)
    told = [
        Figure("tokens", commas(tokens["all"])),
        Figure("of distinct texts", commas(tokens["distinct"])),
    ]
    if plan["shares_prefixes"]:
        share = f"{tokens['shared_prefix'] / max(tokens['distinct'], 1):.1%}"
        told.append(Figure("shared prefixes", commas(tokens["shared_prefix"]), share))
    told.append(Figure("to compute", commas(tokens["computed"])))
    more = tokens["padded"] / max(tokens["computed"], 1)
    note = f"{more:.2f} times as many: batches of 32 texts sorted by length, and padded"
    told.append(Figure("with padding", commas(tokens["padded"]), note))
    most = plan["config"]["max_num_batched_tokens"]
    told.append(Figure("steps", commas(plan["steps"]), f"of at most {most:,} tokens"))
    draw_section(console, "Tokens", told, MAX_WIDTH)
    draw_section(console, "Weights", _weights(plan["weights"]), MAX_WIDTH)


def _weights(weights: WeightFigures) -> list[Figure]:
    held = show_size(weights["held_bytes"])
    return [Figure(f"{weights['count']:,} weights", held, describe_weights(weights))]


def _streaming(streaming: PassForecast, weights: WeightFigures) -> Iterator[Figure]:
    ring = f"and a ring of {show_size(streaming['ring_bytes'])} for the others"
    yield Figure("in memory", show_size(streaming["pinned_bytes"]), ring)
    each, total = show_size(weights["streamed_bytes"]), show_size(weights["bytes_read"])
    yield Figure("passes", f"{weights['passes']:,}", f"{each} each, {total} in all")
    if streaming["read_s"] is None or streaming["bytes_per_s"] is None:
        yield Figure("time", "unknown", "the first run measures the disk and the kernels")
        return
    rate = f"at {show_size(streaming['bytes_per_s'])}/s"
    yield Figure("reading takes", show_seconds(streaming["read_s"]), rate)
    if streaming["compute_s"] is not None and streaming["tokens_per_s"] is not None:
        beside = f"beside it, at {streaming['tokens_per_s']:,.0f} tokens/s"
        yield Figure("products take", show_seconds(streaming["compute_s"]), beside)
    if streaming["limit"] is not None:
        yield Figure("limited by", streaming["limit"], _LIMITS[streaming["limit"]])


_LIMITS: dict[Limit, str] = {
    "disk": "more rows at once, or more --weights-memory, read less",
    "arithmetic": "reading hides behind computing",
    "KV memory": "more rows at once would hide reading, but the pool holds no more",
}


def _rows(forecast: PlanReport) -> list[Figure]:
    rows = forecast["rows"]
    lines: list[Figure] = [Figure("rows", commas(rows["total"]))]
    if rows["refused"]:
        refused = sum(rows["refused"].values())
        lines.append(Figure("refused", commas(refused), "with the reason under error"))
        lines += [Figure(f"  {code}", commas(n)) for code, n in rows["refused"].items()]
    if forecast["clamped"]:
        note = "max_tokens reduced to the room left by the prompt"
        lines.append(Figure("cut", commas(forecast["clamped"]), note))
    lines.append(
        Figure("duplicates", commas(rows["duplicates"]), "answered without being computed")
    )
    if not rows["is_simulated_whole"]:
        note = "in run order; memory over time and attention refer to these (--simulate-rows)"
        lines.append(Figure("simulated", commas(rows["simulated"]), note))
    return lines


def _time(forecast: PlanReport) -> list[Figure]:
    time = forecast["run_time"]
    if time is None:
        note = "not timed on this machine yet; pass --calibrate"
        return [Figure("a run takes", "unknown", note)]
    note = "with loading; answers of one token, to as long as max_tokens allows"
    return [Figure("a run takes", show_span(time["low_s"], time["high_s"]), note)]


def _tokens(forecast: PlanReport) -> list[Figure]:
    tokens, prefix = forecast["tokens"], forecast["prefix"]
    read, alone = prefix["attention_bytes_read"], prefix["attention_bytes_without_sharing"]
    achievable = f"{prefix['achievable_hit_rate']:.1%} if prefixes were shared to the token"
    most = "as far as max_tokens allows"
    if forecast["voting"]:
        most += (
            f"; all samples of {forecast['voting']:,} rows that vote, of which a run draws fewer"
        )
    lines: list[Figure] = [
        Figure("prompt tokens", commas(tokens["prompt"])),
        Figure(
            "from the cache",
            commas(tokens["cached"]),
            f"{prefix['hit_rate']:.1%}; {achievable}",
        ),
        Figure("to compute", commas(tokens["computed"])),
        Figure("to generate, at most", commas(tokens["generated"]), most),
        Figure(
            "attention reads", show_size(read), f"of {show_size(alone)} if every row read alone"
        ),
    ]
    if alone:
        lines.append(
            Figure("  saved", f"{1 - read / alone:.1%}", "by reading shared prefixes once")
        )
    if tokens["preempted_recomputed"]:
        again = commas(tokens["preempted_recomputed"])
        lines.append(Figure("computed again", again, "after preemptions"))
    return lines


def _draw_tree(console: Console, forecast: PlanReport) -> None:
    found = forecast["tree"]
    draw_heading(console, "Shared prefixes", MAX_WIDTH)
    _wrapped(
        console,
        f"{found['distinct_tokens']:,} distinct prompt tokens; "
        f"{found['groups']:,} groups of rows that share their first block, "
        f"up to {found['depth']} prefixes deep",
    )
    if not found["top_prefixes"]:
        return
    draw_prefixes(console, found["top_prefixes"])


def _memory(forecast: PlanReport) -> list[Figure]:
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
    lines: list[Figure] = [
        Figure("a token takes", show_size(kv["bytes_per_token"]), f"in {kv['dtype']}; {others}"),
        *group_figures(groups),
        Figure("blocks in the pool", commas(kv["num_blocks"]), pool),
        Figure("needed at most", commas(kv["blocks_needed"]), "to keep every prefix at full batch"),
        Figure("in use at peak", commas(kv["peak_blocks"]), peak),
        Figure("fragmentation at peak", f"{kv['tail_waste']:.1%}", "empty ends of last blocks"),
    ]
    if decoding := forecast.get("decoding"):
        left = show_size(decoding["states"] + decoding["graphs"])
        lines.append(
            Figure("left for decoding", left, "for captured steps and states of attention")
        )
    total = preemptions["swap"] + preemptions["recompute"]
    if total:
        note = f"{preemptions['swap']:,} by swap, {preemptions['recompute']:,} by "
        lines.append(
            Figure("preemptions", commas(total), f"{note}recompute; a larger pool has fewer")
        )
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
    steps = f"{forecast['steps']['count']:,} steps"
    highest = f"blocks in use, highest bar {max(used):,}"
    _plain(console, f"  {highest}{steps.rjust(max(min(len(used), width) - len(highest), 0))}")


def _drafts(drafts: DraftFigures, num_steps: int) -> list[Figure]:
    per_step = drafts["tokens_per_step"]
    per_token = per_step / max(drafts["tokens"], 1)
    right = ", ".join(
        f"{count * per_token:.2f} {SOURCES[source]}"
        for source, count in sorted(drafts["by_source"].items())
        if count
    )
    source = f"estimated from answers to {counted(drafts['rows'], 'row')}"
    few = f"; {drafts['possible']:,} may have drafts" if drafts["possible"] < num_steps else ""
    return [
        Figure("tokens a step", f"{per_step:.2f}", right or "no draft is right"),
        Figure(
            "steps",
            commas(drafts["count"]),
            f"of {num_steps:,} without drafts{few}; {source}, {drafts['tokens']:,} tokens",
        ),
    ]


def _batch(forecast: PlanReport) -> list[Figure]:
    kv, steps = forecast["kv"], forecast["steps"]
    contiguous = kv["contiguous_max_requests"]
    gain = f"; paged {kv['rows_at_once_typical'] / contiguous:.1f}×" if contiguous else ""
    return [
        Figure(
            "largest batch, run", commas(steps["max_running"]), "rows at once in the simulation"
        ),
        Figure(
            "largest batch, paged",
            commas(kv["rows_at_once_typical"]),
            f"rows of full length; anywhere in the file {kv['rows_at_once_everywhere']:,}",
        ),
        Figure(
            "contiguous",
            commas(contiguous),
            f"rows of {forecast['tokens']['longest_row']:,} tokens in the same memory{gain}",
        ),
    ]


def _draw_block_sizes(console: Console, compared: BlockSizeComparison, current: int) -> None:
    draw_heading(console, "Block sizes for this file", MAX_WIDTH)
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
            commas(each["computed_tokens"]),
            commas(each["peak_blocks"]),
            show_size(each["peak_bytes"]),
            f"{each['tail_waste']:.1%}",
            ", ".join(word for word, other in marks if size == other),
            style="bold" if size == compared["best"] else "",
        )
    console.print(table)
    _wrapped(console, _cost(compared, current))


def _cost(compared: BlockSizeComparison, current: int) -> str:
    """Return the gain of the best block size over the current one."""
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
    """Return the relative change of a figure; `down` is the wording of a decrease."""
    change = one[name] / other[name] - 1 if other[name] else 0.0
    return f"{abs(change):.1%} {'more ' + down.partition(' ')[2] if change > 0 else down}"


def _draw_advice(console: Console, advice: TemplateAdvice | None) -> None:
    draw_heading(console, "Order of the prompts' parts", MAX_WIDTH)
    if advice is None:
        _plain(console, "  not checked: the input is a stream and was read once")
    elif not advice["found"]:
        _plain(console, f"  nothing to gain (tried on {advice['sample_rows']:,} rows)")
    else:
        for each in advice["found"]:
            _wrapped(console, f"• {each['sentence']}")
        _plain(console, f"  (tried on {advice['sample_rows']:,} rows)")


def _plain(console: Console, line: str) -> None:
    console.print(Text(safe(line)), soft_wrap=True)


def _wrapped(console: Console, sentence: str) -> None:
    for line in textwrap.wrap(safe(sentence), min(console.width, MAX_WIDTH) - 4):
        console.print(Text(f"  {line}"), soft_wrap=True)


def replica_lines(replicas: ReplicaFigures) -> list[Figure]:
    """Return the figures of a plan with replicas."""
    again, most = replicas["split_prefix_tokens"], replicas["computed_at_most"]
    efficiency = f"{replicas['expected_efficiency']:.1%}"
    return [
        Figure("units", f"{replicas['units']:,}", "rows assigned to a replica together"),
        Figure("computed again", f"{again:,}", "at most: prefixes with rows in several units"),
        Figure("to compute in all", f"{most:,}", "prompt tokens, at most, if no row runs twice"),
        Figure(
            "expected efficiency", efficiency, "of equally fast replicas, without loading the model"
        ),
    ]


TEXT_CHARS = 60


def draw_prefixes(console: Console, prefixes: Sequence[SharedPrefix | HeldPrefix]) -> None:
    """Print the tree of prefixes, whose `parent` is an index in `prefixes` or None."""
    tree = Tree(Text("  largest savings"), guide_style="dim")
    nodes: dict[int | None, Tree] = {None: tree}
    # A prefix may precede its parent.
    left = dict(enumerate(prefixes))
    while left:
        for index, prefix in list(left.items()):
            if prefix["parent"] in nodes:
                nodes[index] = nodes[prefix["parent"]].add(_line(prefix))
                del left[index]
    console.print(tree)


def _line(prefix: SharedPrefix | HeldPrefix) -> Text:
    shown = Text(no_wrap=True, overflow="ellipsis")
    shown.append(f"{counted(prefix['tokens'], 'token')}", "bold")
    shown.append(f" × {prefix['rows']:,} rows, saves {prefix['tokens_saved']:,}")
    if "bytes_saved" in prefix:
        shown.append(f" ({show_size(prefix['bytes_saved'])})")
    if text := prefix.get("text"):
        shown.append(f"  {safe(' '.join(text.split()), TEXT_CHARS)}", "dim")
    return shown
