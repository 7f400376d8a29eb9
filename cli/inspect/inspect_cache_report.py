"""What `inspect-cache` found, on stderr: counts, the block map, tables, the tree, lives, causes."""

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedrun.cli.inspect.block_map import NAMES, STYLES, map_lines
from pagedrun.cli.inspect.block_table_lines import (
    block_origins,
    group_sentence,
    row_lines,
    sample_word,
    table_lines,
    table_sentence,
)
from pagedrun.cli.inspect.inspect_cache_figures import cache_figures, lifetime_figures, pool_figures
from pagedrun.cli.inspect.shown_inspection import ShownInspection
from pagedrun.cli.report.figure import Figure
from pagedrun.cli.report.prefix_lines import draw_prefixes
from pagedrun.cli.report.replica_table import draw_replicas
from pagedrun.cli.report.report import MIN_NOTE_WIDTH, NOTE_BEGINS, figure_lines, heading
from pagedrun.cli.report.state_figures import state_figures
from pagedrun.cli.terminal.safe_text import safe
from pagedrun.paged.report.inspect.inspection_sections import (
    BlockLife,
    HeldPrefixes,
    Inspection,
    PreemptionEvents,
)

MAX_WIDTH = 140
TEXT_WIDTH = 100


def draw_inspection(found: ShownInspection, console: Console) -> None:
    """Print what `inspect_run` found, with the command's `notes`, on `console`."""
    note_width = max(_width(console, TEXT_WIDTH) - NOTE_BEGINS, MIN_NOTE_WIDTH)
    bar = "#" if console.options.ascii_only else "█"
    bars = 0 if console.options.ascii_only else note_width
    _draw(console, "KV pool", pool_figures(found, bars))
    if states := found.get("states"):
        _draw(console, "States (of recurrent layers, or a library's caches)", state_figures(states))
    _draw(console, "Prefix cache", cache_figures(found["statistics"], found["beams"]))
    if found["replicas"]:
        width = _width(console, TEXT_WIDTH)
        console.print(heading("Replicas", console, width))
        draw_replicas(found, console, width)
    _draw_map(console, found)
    if found["rows"]:
        _draw_rows(console, found)
    if found["prefixes"] is not None:
        _draw_prefixes(console, found["prefixes"])
    if found["lifetimes"] is not None:
        _draw(console, "Block lifetimes", lifetime_figures(found["lifetimes"], note_width, bar))
    if found["most_shared"]:
        _draw_most_shared(console, found["most_shared"])
    if found["preemptions"] is not None:
        _draw_preemptions(console, found["preemptions"])
    for note in found["notes"]:
        _wrapped(console, note, "yellow", indent="")


def _draw(console: Console, title: str, figures: Sequence[Figure]) -> None:
    if not figures:
        return
    console.print(heading(title, console, _width(console, TEXT_WIDTH)))
    note_width = max(_width(console, TEXT_WIDTH) - NOTE_BEGINS, MIN_NOTE_WIDTH)
    for figure in figures:
        for line in figure_lines(figure, note_width):
            console.print(line, soft_wrap=True)


def _draw_map(console: Console, found: Inspection) -> None:
    moment, block_map, held = found["moment"], found["block_map"], found["rows_held"]
    if moment is None or block_map is None or held is None:
        return  # there is no snapshot, or no sample in it
    width = _width(console, MAX_WIDTH)
    title = f"Block map, step {moment['step']:,} of {found['pool']['num_steps']:,}"
    console.print(heading(title, console, _width(console, TEXT_WIDTH)))
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
            f"held by {_count(held['count'], 'row')}: {rows}{more} (--row N shows a block table)",
        )


def _draw_rows(console: Console, found: Inspection) -> None:
    console.print(heading("Block tables", console, _width(console, TEXT_WIDTH)))
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
    console.print(heading("Shared prefixes", console, _width(console, TEXT_WIDTH)))
    if prefixes["top"]:
        draw_prefixes(console, prefixes["top"])
    else:
        _wrapped(console, "no two rows have a whole block in common")


def _draw_most_shared(console: Console, lives: Sequence[BlockLife]) -> None:
    console.print(heading("Most shared blocks", console, _width(console, TEXT_WIDTH)))
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
    console.print(heading("Preemptions", console, _width(console, TEXT_WIDTH)))
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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"
