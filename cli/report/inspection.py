"""Screen of `inspect-cache`: counts, block map, tables, prefix tree, lifetimes and preemptions."""

import textwrap
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedrun.cli.report.block_tables import (
    NAMES,
    STYLES,
    block_origins,
    group_sentence,
    map_lines,
    row_lines,
    sample_word,
    table_lines,
    table_sentence,
)
from pagedrun.cli.report.plan_report import draw_prefixes
from pagedrun.cli.report.replica_table import draw_replicas
from pagedrun.cli.report.report import MIN_NOTE_WIDTH, draw_heading, draw_section, note_width
from pagedrun.cli.report.report_figures import (
    Figure,
    group_figures,
    sparkline,
    state_figures,
    streaming_figures,
)
from pagedrun.cli.terminal.console import safe
from pagedrun.cli.terminal.units import commas, counted, show_size
from pagedrun.paged.job.output.manifest import JobStatus
from pagedrun.paged.job.output.side_files import RunFiles
from pagedrun.paged.metrics.inspection_sections import (
    BlockLife,
    HeldPrefixes,
    InspectedBeams,
    InspectedGroup,
    Inspection,
    Lifetimes,
    PoolMoment,
    PreemptionEvents,
    RunCounts,
)
from pagedrun.paged.metrics.saved_report import SavedReport
from pagedrun.paged.metrics.snapshot import Snapshot

MAX_WIDTH = 140
TEXT_WIDTH = 100


class ShownInspection(Inspection):
    """Inspection of a run with the paths of its files, notes about missing parts, and the figures
    of replicas, None for a single engine."""

    files: dict[str, str | None]
    notes: list[str]
    replicas: list[Mapping[str, object]] | None


def draw_inspection(found: ShownInspection, console: Console) -> None:
    """Print an inspection."""
    bar = "#" if console.options.ascii_only else "█"
    num_bars = note_width(console, TEXT_WIDTH)
    bars = 0 if console.options.ascii_only else num_bars
    _draw(console, "KV pool", pool_figures(found, bars))
    if states := found.get("states"):
        _draw(console, "States (of recurrent layers, or a library's caches)", state_figures(states))
    if streaming := found.get("streaming"):
        _draw(console, "Weights read in each pass", streaming_figures(streaming, None))
    _draw(console, "Prefix cache", cache_figures(found["statistics"], found["beams"]))
    if found["replicas"]:
        draw_heading(console, "Replicas", TEXT_WIDTH)
        draw_replicas(found, console, _width(console, TEXT_WIDTH))
    _draw_map(console, found)
    if found["rows"]:
        _draw_rows(console, found)
    if found["prefixes"] is not None:
        _draw_prefixes(console, found["prefixes"])
    if found["lifetimes"] is not None:
        _draw(console, "Block lifetimes", lifetime_figures(found["lifetimes"], num_bars, bar))
    if found["most_shared"]:
        _draw_most_shared(console, found["most_shared"])
    if found["preemptions"] is not None:
        _draw_preemptions(console, found["preemptions"])
    for note in found["notes"]:
        _wrapped(console, note, "yellow", indent="")


def _draw(console: Console, title: str, figures: Sequence[Figure]) -> None:
    draw_section(console, title, figures, TEXT_WIDTH)


def _draw_map(console: Console, found: Inspection) -> None:
    moment, block_map, held = found["moment"], found["block_map"], found["rows_held"]
    if moment is None or block_map is None or held is None:
        return  # no snapshot, or no sample in it
    width = _width(console, MAX_WIDTH)
    title = f"Block map, step {moment['step']:,} of {found['pool']['num_steps']:,}"
    draw_heading(console, title, TEXT_WIDTH)
    asked = moment["asked"]
    if asked.isdecimal() and int(asked) != moment["step"]:
        _wrapped(console, f"step {asked} was not sampled; this is the nearest sampled step")
    if found.get("groups"):
        _wrapped(console, "the first group of layers, which keeps whole sequences")
    lines, per_cell = map_lines(block_map["blocks"], width)
    for line in lines:
        console.print(line, soft_wrap=True)
    legend = Text("  ")
    for letter, name in NAMES.items():
        legend.append(letter, STYLES[letter])
        legend.append(f" {name} {moment[name]:,}   ")
    legend.rstrip()
    console.print(legend, soft_wrap=True)
    if per_cell > 1:
        _wrapped(
            console,
            f"one character is {per_cell} blocks: a capital letter if all are in that state, "
            "a small letter for the most common state of those that are not free",
        )
    if held["count"] and not found["rows"]:
        rows = ", ".join(f"{row}" for row in held["first"])
        more = ", …" if held["count"] > len(held["first"]) else ""
        _wrapped(
            console,
            f"held by {counted(held['count'], 'row')}: {rows}{more} (--row N shows a block table)",
        )


def _draw_rows(console: Console, found: Inspection) -> None:
    draw_heading(console, "Block tables", TEXT_WIDTH)
    block_size = found["pool"]["block_size"]
    _wrapped(
        console,
        "block of the row → block of the pool, holders, tokens in it; found with its content, "
        "copied to be written to, or taken empty and filled",
    )
    for row in found["rows"]:
        for sentence in row_lines(row, found["moment"], found["row_stride"]):
            _wrapped(console, sentence)
        if (text := row.get("text")) is not None:
            _wrapped(console, f"prompt: {' '.join(text.split())}", "dim")
        for table in row["tables"]:
            _wrapped(console, table_sentence(table, block_size, sample_word(row)))
            blocks, width = table["blocks"], _width(console, MAX_WIDTH)
            for line in table_lines(blocks, block_size, width, block_origins(blocks)):
                console.print(line, soft_wrap=True)
        for other in row.get("group_tables", []):
            _wrapped(console, group_sentence(other, sample_word(row)))
            for line in table_lines(other["blocks"], block_size, _width(console, MAX_WIDTH)):
                console.print(line, soft_wrap=True)


def _draw_prefixes(console: Console, prefixes: HeldPrefixes) -> None:
    draw_heading(console, "Shared prefixes", TEXT_WIDTH)
    if prefixes["top"]:
        draw_prefixes(console, prefixes["top"])
    else:
        _wrapped(console, "no two rows have a whole block in common")


def _draw_most_shared(console: Console, lives: Sequence[BlockLife]) -> None:
    draw_heading(console, "Most shared blocks", TEXT_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for name in ("   block", "in the row", "holders", "rows", "found", "from step", "to step"):
        table.add_column(name, justify="right")
    for life in lives:
        last = max(life["end"] - 1, life["begin"])
        numbers = [life["block"], life["position"], life["peak_refs"], life["rows"], life["hits"]]
        numbers += [life["begin"], last]
        table.add_row(*(f"{number:,}" for number in numbers))
    console.print(table)


def _draw_preemptions(console: Console, preemptions: PreemptionEvents) -> None:
    if not preemptions["count"]:
        return
    draw_heading(console, "Preemptions", TEXT_WIDTH)
    for event in preemptions["events"]:
        _wrapped(console, event["cause"], hang="  ")
    more = preemptions["count"] - len(preemptions["events"])
    if more:
        _wrapped(console, f"… and {more:,} more (--top {preemptions['count']} lists all)")


def _wrapped(
    console: Console, sentence: str, style: str = "", indent: str = "  ", hang: str = ""
) -> None:
    width = max(_width(console, TEXT_WIDTH) - len(indent), MIN_NOTE_WIDTH)
    for line in textwrap.wrap(safe(sentence), width, subsequent_indent=hang):
        console.print(Text(f"{indent}{line}", style=style), soft_wrap=True)


def _width(console: Console, most: int) -> int:
    return min(console.width, most)


def pool_figures(found: Inspection, num_bars: int) -> list[Figure]:
    """Return size of the pool, and its use at the moment shown and at the peak.

    num_bars: characters of the chart of its use over time, 0 for none.
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
        Figure("blocks", commas(pool["num_blocks"]), f"of {pool['block_size']} tokens, {each}")
    )
    if shown is not None:
        figures += _moment(f"at step {shown['step']:,}", shown, pool["num_blocks"])
    if peak is not None and (shown is None or shown["step"] != peak["step"]):
        figures += _moment(f"at its peak, step {peak['step']:,}", peak, pool["num_blocks"])
    statistics = found["statistics"]
    most = statistics["peak_blocks"]
    if most is not None and (peak is None or most > peak["allocated"]):
        figures.append(Figure("most allocated at once", commas(most), "as the run counted it"))
    if statistics["shared_blocks_peak"] is not None:
        figures.append(Figure("most shared at once", commas(statistics["shared_blocks_peak"])))
    if num_bars and len(found["use_over_time"]) > 1:
        line = sparkline(found["use_over_time"], num_bars)
        figures.append(Figure("allocated over time", "", line))
    return figures


def _groups(groups: Sequence[InspectedGroup], shown: PoolMoment | None) -> list[Figure]:
    """Return the size of each group's pool, and its use at the moment shown."""
    figures = []
    for group, of_pool in zip(groups, group_figures(groups), strict=True):
        figures.append(of_pool)
        counts = group["moment"]
        if counts is not None and shown is not None:
            what = f"at step {shown['step']:,}; shared {counts['shared']:,}, cached "
            figures.append(
                Figure("  allocated", commas(counts["allocated"]), f"{what}{counts['cached']:,}")
            )
    return figures


def _moment(title: str, counts: PoolMoment, num_blocks: int) -> list[Figure]:
    free = counts["free"] + counts["cached"]
    use = f"{counts['utilization']:.1%} of their slots hold a token"
    return [
        Figure(title, "", f"{counts['time_s']:.2f} s into the run"),
        Figure(
            "  allocated",
            commas(counts["allocated"]),
            f"{counts['allocated'] / num_blocks:.1%} of the pool; {use}",
        ),
        Figure("    of these shared", commas(counts["shared"]), f"private {counts['private']:,}"),
        Figure("  free", commas(free), f"of these {counts['cached']:,} cached"),
    ]


def cache_figures(counted: RunCounts, beams: InspectedBeams | None) -> list[Figure]:
    """Return hits, misses and further counts, without unknown ones."""
    lines = (
        ("hits", counted["hits"], "whole blocks of prompts found in the cache"),
        ("misses", counted["misses"], "whole blocks of prompts that were not"),
    )
    figures = [Figure(label, commas(n), note) for label, n, note in lines if n is not None]
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
    figures += [Figure(label, commas(n), note) for label, n, note in events if n is not None]
    if beams is not None:
        what = (
            f"{beams['freed']:,} of their blocks were held by no other beam and freed immediately"
        )
        figures.append(Figure("beams dropped", commas(beams["died"]), what))
    if counted["swap"] is not None and counted["recompute"] is not None:
        how = f"{counted['swap']:,} by swap, {counted['recompute']:,} by recompute"
        total = counted["swap"] + counted["recompute"]
        figures.append(Figure("preemptions", commas(total), how if total else ""))
    return figures


def lifetime_figures(lifetimes: Lifetimes, num_bars: int, bar: str) -> list[Figure]:
    """Return the distribution of times from filling to last release of blocks."""
    if not lifetimes["num_lives"]:
        return []
    figures = [
        Figure("blocks filled", commas(lifetimes["num_lives"]), "each until its last release"),
        Figure("median", counted(lifetimes["median"], "step")),
        Figure("90 % at most", counted(lifetimes["p90"], "step")),
        Figure("longest", counted(lifetimes["longest"], "step")),
    ]
    most = max(lifetimes["counts"])
    classes = zip(lifetimes["least"], lifetimes["most"], lifetimes["counts"], strict=True)
    for least, last, count in classes:
        if count:
            label = (
                counted(least, "step") if last == least else f"{least:,} to {counted(last, 'step')}"
            )
            length = max(round(count / most * min(num_bars, 40)), 1)
            figures.append(Figure(f"  {label}", commas(count), bar * length))
    return figures


def run_notes(
    files: RunFiles,
    snapshot: Snapshot | None,
    report: SavedReport | None,
    *,
    has_rows: bool,
    of_replica: bool = False,
) -> list[str]:
    """Return sentences about missing parts; `of_replica`: the snapshot is that of one replica."""
    notes = []
    if snapshot is None and report is not None and report.replicas:
        notes.append(
            "Each replica has its own pool: --replica K shows its blocks, lifetimes and "
            "preemptions, and with --row the block table of a row that it answered"
        )
    elif snapshot is None:
        notes.append(
            "There is no snapshot beside the report, so there is no block map, no block "
            "table, no lifetime and no cause of a preemption: runs of earlier versions, and "
            "runs without rows for the engine, write none"
        )
        if has_rows:
            notes.append("--row needs the snapshot")
    if report is None and of_replica:
        notes.append(
            "Hits and misses are counted for all replicas together; leave out --replica to see them"
        )
    elif report is None:
        notes.append(
            "There is no report beside the snapshot, so hits and misses are unknown: an "
            "unfinished run writes none"
        )
    if snapshot is not None and snapshot.row_stride > 1:
        notes.append(
            "To bound its size, the snapshot of this run has one row in "
            f"{snapshot.row_stride}: block tables, lifetimes and rows of shared blocks refer "
            "to these rows; the map and the counts of holders refer to all"
        )
    if snapshot is not None and report is not None and not _is_same_pool(snapshot, report):
        notes.append("Warning: the report and the snapshot describe pools of different shapes")
    status = files.status()
    if status not in (None, JobStatus.FINISHED):
        notes.append(
            f"Warning: according to its manifest the last run of this output is {status}: "
            "the files beside it may belong to an earlier run"
        )
    return notes


def _is_same_pool(snapshot: Snapshot, report: SavedReport) -> bool:
    names = ("block_size", "num_blocks", "bytes_per_token")
    return all(report.get(name) == getattr(snapshot, name) for name in names)
