"""Which rows and outputs a program of a grouped product has."""

from typing import Any

import triton
import triton.language as tl


def most_tiles(num_rows: int, num_experts: int, tile_rows: int) -> int:
    """Return how many tiles of rows there can be: each expert may end with one that is not full,
    and who has rows, the device knows alone."""
    return num_rows // tile_rows + min(num_experts, num_rows)


@triton.jit
def tile_of_program(out_features, COLUMNS: tl.constexpr) -> Any:
    """Return the tile of rows of a program, and its outputs, [COLUMNS]."""
    num_column_tiles = tl.cdiv(out_features, COLUMNS)
    row_tile = tl.program_id(0) // num_column_tiles
    column_tile = tl.program_id(0) % num_column_tiles
    return row_tile, column_tile * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def sources_of(tokens, first, end, ROWS: tl.constexpr) -> Any:
    """Return the rows of a tile that begins at `first`, and whose inputs they take, [ROWS] each.

    Past the end the last row is read again, rather than under a mask; it is not to be stored.
    tokens: whose input each row takes, None where it is its own.
    """
    rows = first + tl.arange(0, ROWS)
    sources = tl.minimum(rows, end - 1)
    if tokens is not None:
        sources = tl.load(tokens + sources)
    return rows, sources


@triton.jit
def rows_of_tile(starts, num_experts, row_tile, ROWS: tl.constexpr, EXPERTS: tl.constexpr) -> Any:
    """Return a tile's expert, its first row, and the end of the expert's rows.

    Tiles of ROWS rows are counted through the experts, each of which may end with one that is not
    full; which expert a tile has is found by adding up. One behind the last tile begins at its end,
    or behind it. starts: see `ExpertRows`. EXPERTS: num_experts, or the next power of two.
    """
    numbers = tl.arange(0, EXPERTS)
    inside = numbers < num_experts
    firsts = tl.load(starts + numbers, mask=inside, other=0)
    lasts = tl.load(starts + numbers + 1, mask=inside, other=0)
    num_tiles = tl.cdiv(lasts - firsts, ROWS)
    tile_ends = tl.cumsum(num_tiles, axis=0)
    expert = tl.sum((tile_ends <= row_tile).to(tl.int32), axis=0)
    is_own = numbers == expert
    tile_of_expert = row_tile - tl.sum(tl.where(is_own, tile_ends - num_tiles, 0), axis=0)
    end = tl.sum(tl.where(is_own, lasts, 0), axis=0)
    first = tl.sum(tl.where(is_own, firsts, 0), axis=0) + tile_of_expert * ROWS
    return expert, first, end
