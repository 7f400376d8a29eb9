"""The block map: a picture of the pool at one moment, told by letters as well as by colour."""

from collections.abc import Iterator
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

MAX_LINES = 32
MIN_CELLS, MAX_CELLS = 16, 256
FREE = "."
STYLES = {"S": "bold magenta", "P": "green", "C": "yellow", FREE: "dim"}
# Where a character is for as many blocks of one kind as of another, the first one wins.
NAMES: dict[str, Literal["shared", "private", "cached", "free"]] = {
    "S": "shared",
    "P": "private",
    "C": "cached",
    FREE: "free",
}


def map_lines(blocks: str, width: int) -> tuple[list[Text], int]:
    """Return the lines of the picture, and how many blocks one character of it shows.

    `blocks` has one letter of `NAMES` for each block. Lines are at most `width` wide and at most
    `MAX_LINES`. Where a character shows several blocks it is a capital if all are in that
    state; a small letter tells what most of those are that store something.
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
    for place, count in groups:
        start = place * cells * per_cell
        line = Text.assemble((f"{start:,}".rjust(label - 2) + "  ", "dim"))
        if count > 1:
            last = min(start + count * cells * per_cell, len(blocks)) - 1
            line.append(f"free as far as block {last:,}", STYLES[FREE])
        else:
            for run in _runs(rows[place]):
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
    most = np.argmax(counts[:-1], axis=0)  # of what is not free; the first of equals
    of_most = counts[most, np.arange(num_cells)]
    characters = np.where(of_most == sizes, letters[most], letters[most] | 0x20)  # 0x20: small
    characters = np.where(of_most == 0, np.uint8(ord(FREE)), characters)
    return characters.astype(np.uint8).tobytes().decode()


def _groups(rows: list[str]) -> list[tuple[int, int]]:
    """Return which rows share a line: place and number. Several do if there is nothing in them."""
    groups: list[tuple[int, int]] = []
    for is_free, members in groupby(range(len(rows)), lambda place: not rows[place].strip(FREE)):
        places = list(members)
        groups += [(places[0], len(places))] if is_free else [(place, 1) for place in places]
    return groups


def _runs(row: str) -> Iterator[str]:
    """Yield the row in stretches of one character."""
    start = 0
    for place in range(1, len(row) + 1):
        if place == len(row) or row[place] != row[start]:
            yield row[start:place]
            start = place
