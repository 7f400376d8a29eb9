"""Block tables of rows, and the block map of a pool at one moment.

States of blocks are shown by letters as well as by colors.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from pagedrun.cli.report.report_figures import group_name
from pagedrun.cli.terminal.console import safe
from pagedrun.cli.terminal.units import counted
from pagedrun.paged.metrics.inspection_sections import (
    GroupTable,
    HeldBlock,
    InspectedRow,
    PoolMoment,
    ShownTable,
    TableBlock,
)

MAX_LINES = 32
MIN_CELLS, MAX_CELLS = 16, 256
FREE = "."
STYLES = {"S": "bold magenta", "P": "green", "C": "yellow", FREE: "dim"}
# On ties in a character for several blocks, the first state wins.
NAMES: dict[str, Literal["shared", "private", "cached", "free"]] = {
    "S": "shared",
    "P": "private",
    "C": "cached",
    FREE: "free",
}


def map_lines(blocks: str, width: int) -> tuple[list[Text], int]:
    """Return the lines of the block map, and the number of blocks per character.

    blocks: one letter of `NAMES` for each block. There are at most `MAX_LINES` lines of `width`
    columns. A character for several blocks is a capital if all are in that state; a small letter is
    the most common state of those that are not free.
    """
    label = len(f"{len(blocks):,}") + 4
    cells = MIN_CELLS
    while cells * 2 + label <= width and cells < MAX_CELLS:
        cells *= 2
    array = np.frombuffer(blocks.encode(), np.uint8)
    per_cell = 1
    while True:
        picture = _picture(array, per_cell)
        rows = [picture[start : start + cells] for start in range(0, len(picture), cells)]
        groups = _groups(rows)
        if len(groups) <= MAX_LINES:
            break
        per_cell *= 2
    lines = []
    for index, count in groups:
        start = index * cells * per_cell
        line = Text.assemble((f"{start:,}".rjust(label - 2) + "  ", "dim"))
        if count > 1:
            last = min(start + count * cells * per_cell, len(blocks)) - 1
            line.append(f"free as far as block {last:,}", STYLES[FREE])
        else:
            for run in _runs(rows[index]):
                line.append(run, STYLES[run[0].upper()])
        lines.append(line)
    return lines, per_cell


def _picture(blocks: NDArray[np.uint8], per_cell: int) -> str:
    """Return one character for each `per_cell` blocks."""
    if per_cell == 1:
        return blocks.tobytes().decode()
    num_cells = -(-len(blocks) // per_cell)
    starts = np.arange(num_cells) * per_cell
    sizes = np.minimum(starts + per_cell, len(blocks)) - starts
    letters = np.frombuffer("".join(NAMES).encode(), np.uint8)
    counts = np.stack([np.add.reduceat(blocks == each, starts, dtype=np.int64) for each in letters])
    most = np.argmax(counts[:-1], axis=0)  # without free; the first on ties
    of_most = counts[most, np.arange(num_cells)]
    characters = np.where(of_most == sizes, letters[most], letters[most] | 0x20)  # 0x20: small
    characters = np.where(of_most == 0, np.uint8(ord(FREE)), characters)
    return characters.astype(np.uint8).tobytes().decode()


def _groups(rows: list[str]) -> list[tuple[int, int]]:
    """Return index and number of the map rows of each line; consecutive free rows share one."""
    groups: list[tuple[int, int]] = []
    for is_free, members in groupby(range(len(rows)), lambda index: not rows[index].strip(FREE)):
        indices = list(members)
        groups += [(indices[0], len(indices))] if is_free else [(index, 1) for index in indices]
    return groups


def _runs(row: str) -> Iterator[str]:
    """Yield the runs of equal characters in a row."""
    start = 0
    for index in range(1, len(row) + 1):
        if index == len(row) or row[index] != row[start]:
            yield row[start:index]
            start = index


MAX_BLOCKS = 400
GAP = "    "
_LETTERS: dict[str, str] = {name: letter for letter, name in NAMES.items()}


def row_lines(row: InspectedRow, moment: PoolMoment | None, row_stride: int) -> Iterator[str]:
    """Yield the sentences about a row above its block tables."""
    number, named = row["row"], f"row {row['row']}"
    if (asked := row.get("id")) is not None:
        named += f" ({safe(asked, 60)})"
    if not row["is_kept"]:
        yield (
            f"{named}: the snapshot of this run has only one row in {row_stride}; row "
            f"{number - number % row_stride} is the nearest"
        )
        return
    if not row["stays"]:
        yield (
            f"{named} held no blocks in this run: it does not exist, was refused, is a "
            "duplicate of another row, or was answered by an earlier run"
        )
        return
    spans = ", ".join(_span(*each) for each in row["stays"])
    more = row["num_stays"] - len(row["stays"])
    spans += f" and {more:,} times more" if more else ""
    if not row["tables"] and moment is not None:
        step = row["sampled_at"]
        where = "between two samples" if step is None else f"--at {step}"
        yield f"{named} holds no blocks here, but it did in {spans} ({where})"
    else:
        yield f"{named} held blocks in {spans}"
    if (beams := row["beams"]) is not None:
        yield f"{counted(beams['forked'], 'beam')} forked and {beams['died']:,} were dropped" + (
            f", which freed {counted(beams['freed'], 'block')}" if beams["died"] else ""
        )
    for shared in row["shared"]:
        who = f"{sample_word(row)}s {', '.join(map(str, shared['samples']))}"
        first, last = shared["first"], shared["last"]
        which = f"block {first:,}" if first == last else f"blocks {first:,} to {last:,}"
        yield f"{who} share {which}"
    yield from (event["cause"] for event in row["preemptions"])


def sample_word(row: InspectedRow) -> str:
    """Return the noun for the sequences of a row."""
    return "sample" if row["beams"] is None else "beam"


def table_sentence(table: ShownTable, block_size: int, sample: str = "sample") -> str:
    """Return the sentence about the size of a block table and the slot of its last token.

    sample: see `sample_word`.
    """
    last = table["last_token"]
    blocks = f"{len(table['blocks']):,} {'block' if len(table['blocks']) == 1 else 'blocks'}"
    told = f"{sample} {table['sample']}: {table['tokens']:,} tokens in {blocks}"
    if last is None:
        return told
    return (
        f"{told}; the last one, token {last['token']:,}, has slot {last['physical']:,} × "
        f"{block_size} + {last['offset']} = {last['slot']:,}"
    )


def group_sentence(table: GroupTable, sample: str = "sample") -> str:
    """Return the sentence about the block table of a further KV group; sample: see
    `sample_word`."""
    held, name = table["blocks"], group_name(table["num_layers"], table["window"])
    told = f"{name}, {sample} {table['sample']}: "
    if not held:
        return f"{told}no blocks"
    first, last = held[0]["logical"], held[-1]["logical"]
    return f"{told}{counted(len(held), 'block')}, {first:,} to {last:,} of the row"


def block_origins(blocks: Sequence[TableBlock]) -> list[str]:
    """Return the origin of each block: copied, found or filled."""
    return [
        "copied" if block["copied"] else "found" if block["found"] else "filled" for block in blocks
    ]


def table_lines(
    blocks: Sequence[HeldBlock], block_size: int, width: int, origins: Sequence[str] = ()
) -> Iterator[Text]:
    """Yield the lines of a block table, in as many columns as fit into `width`.

    origins: see `block_origins`; empty if unknown.
    """
    shown = blocks[:MAX_BLOCKS]
    entries = _entries(shown, block_size, origins or [""] * len(shown))
    if not entries:
        return
    size = max(len(entry) for entry in entries)
    columns = max((width - 2 + len(GAP)) // (size + len(GAP)), 1)
    height = -(-len(entries) // columns)
    for line in range(height):
        text = Text("  ")
        for index in range(line, len(entries), height):
            text.append_text(entries[index])
            text.append(GAP)
        text.rstrip()
        yield text
    if len(blocks) > len(shown):
        yield Text(f"  … and {len(blocks) - len(shown):,} blocks more (--json has all)", "dim")


def _entries(blocks: Sequence[HeldBlock], block_size: int, origins: Sequence[str]) -> list[Text]:
    """Return the text of each block, all of equal length."""
    logical = max((len(f"{block['logical']:,}") for block in blocks), default=0)
    physical = max((len(f"{block['physical']:,}") for block in blocks), default=0)
    refs = max((len(f"{block['ref_count']:,}") for block in blocks), default=0)
    full = len(str(block_size))
    entries = []
    for block, origin in zip(blocks, origins, strict=False):  # of all blocks, shown or not
        letter = _LETTERS[block["state"]]
        text = Text(f"{block['logical']:>{logical},} → {block['physical']:>{physical},}  ")
        text.append(f"{letter} ×{block['ref_count']:<{refs},}", STYLES[letter])
        text.append(f"  {block['tokens']:>{full}}/{block_size}")
        if origin:
            text.append(f"  {origin:<6}", "dim")
        entries.append(text)
    return entries


def _span(begin: int, end: int) -> str:
    return f"step {begin:,}" if end - begin <= 1 else f"steps {begin:,} to {end - 1:,}"
