"""A tile: the rows that one task attends for, in blocks of 32, and what they have read so far.

Everything lies transposed, a row being a column of 32 floats or words. Functions take the arrays
out of their bundles before they loop: to take one out is to count a reference to it.
"""

from typing import Any, NamedTuple

import numpy as np

from pagedrun.kernels.cpu.attention.gather import fill
from pagedrun.kernels.cpu.attention.operands import BLOCK_ROWS
from pagedrun.kernels.cpu.attention.softmax import add_sinks, divide
from pagedrun.kernels.cpu.bfloat16 import as_operand, from_float32
from pagedrun.kernels.cpu.jit import part
from pagedrun.kernels.cpu.simd.aligned import aligned_zeros
from pagedrun.kernels.cpu.simd.words import transpose_words

SOME_LOW, SOME_HIGH, ALL_LOW, ALL_HIGH = range(4)
_EVERY_POSITION = 1 << 30
_LANES = 16


class Tile(NamedTuple):
    """Memory for the largest tile of a thread, flat, its rows filled up to whole blocks.

    peaks, sums: float32 a row. totals: [num_blocks * dim * 32] float32. lows, highs: the positions
    that a row sees. bounds: [num_blocks, 4], what any row of a block sees, from SOME_LOW to
    SOME_HIGH, and what all see. lines: one block [32 * dim] that is not transposed.
    """

    peaks: Any
    sums: Any
    totals: Any
    lows: Any
    highs: Any
    bounds: Any
    lines: Any


@part()
def tile_memory(num_blocks: Any, dim: Any) -> Any:
    """Return memory for tiles of up to `num_blocks` blocks."""
    num_rows = num_blocks * BLOCK_ROWS
    return Tile(
        aligned_zeros(num_rows, np.float32),
        aligned_zeros(num_rows, np.float32),
        aligned_zeros(num_rows * dim, np.float32),
        np.zeros(num_rows, np.int32),
        np.zeros(num_rows, np.int32),
        np.zeros((num_blocks, 4), np.int64),
        aligned_zeros(BLOCK_ROWS * dim, np.float32),
    )


@part()
def look(tile: Any, rows: Any, group: Any, lows: Any, highs: Any) -> Any:
    """Note what each row and block sees; return (low, high, low, high): any row's, and all rows'.

    rows: the tile's tokens, of which each has `group` rows. lows, highs: see `Work`.
    """
    num_rows = rows.shape[0] * group
    num_blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    row_lows, row_highs, block_bounds = tile.lows, tile.highs, tile.bounds
    low, high, all_low, all_high = _EVERY_POSITION, 0, 0, _EVERY_POSITION
    for block in range(num_blocks):
        some_low, some_high, each_low, each_high = _EVERY_POSITION, 0, 0, _EVERY_POSITION
        for row in range(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS):
            # What fills up the last block sees what the last row sees.
            token = rows[min(row, num_rows - 1) // group]
            row_low, row_high = 0, _EVERY_POSITION
            if highs.shape[0] > 0:
                row_low, row_high = lows[token], highs[token]
            row_lows[row], row_highs[row] = row_low, row_high
            some_low, each_low = min(some_low, row_low), max(each_low, row_low)
            some_high, each_high = max(some_high, row_high), min(each_high, row_high)
        block_bounds[block, SOME_LOW], block_bounds[block, SOME_HIGH] = some_low, some_high
        block_bounds[block, ALL_LOW], block_bounds[block, ALL_HIGH] = each_low, each_high
        low, high = min(low, some_low), max(high, some_high)
        all_low, all_high = max(all_low, each_low), min(all_high, each_high)
    return low, high, all_low, all_high


@part()
def pack_queries(q: Any, rows: Any, head: Any, group: Any, dim: Any, operands: Any) -> None:
    """Copy the rows' queries to `operands.queries`.

    A word is a float32, or two neighbouring bfloat16 as they lie in memory.
    """
    lines, queries = operands.block_rows, operands.queries
    num_rows, num_words = rows.shape[0] * group, dim * lines.itemsize // 4
    for start in range(0, num_rows, BLOCK_ROWS):
        fill(lines, 0)
        for row in range(start, min(start + BLOCK_ROWS, num_rows)):
            source = q[rows[row // group], head * group + row % group]
            target = lines[(row - start) * dim : (row - start + 1) * dim]
            for d in range(source.shape[0]):
                target[d] = as_operand(source[d], lines)
        _transpose(lines, 0, BLOCK_ROWS, num_words, queries, start * num_words)


@part()
def begin(tile: Any, num_rows: Any, dim: Any) -> None:
    """Make the state that of rows which have read nothing."""
    end = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_ROWS
    peaks, sums = tile.peaks, tile.sums
    for row in range(end):
        peaks[row], sums[row] = -np.inf, 0.0
    fill(tile.totals[: end * dim], 0)


@part()
def load_state(tile: Any, state: Any, rows: Any, head: Any, group: Any, dim: Any) -> None:
    """Read the state that an earlier group of partitions left."""
    num_rows = rows.shape[0] * group
    peaks, sums, totals, lines = tile.peaks, tile.sums, tile.totals, tile.lines
    kept_peaks, kept_sums, kept_totals = state
    for start in range(0, num_rows, BLOCK_ROWS):
        for row in range(start, min(start + BLOCK_ROWS, num_rows)):
            token, q_head = rows[row // group], head * group + row % group
            peaks[row], sums[row] = kept_peaks[token, q_head], kept_sums[token, q_head]
            source = kept_totals[token, q_head]
            target = lines[(row - start) * dim : (row - start + 1) * dim]
            for d in range(source.shape[0]):
                target[d] = source[d]
            fill(target, source.shape[0])  # the memory is that of the task before
        _transpose(lines, 0, BLOCK_ROWS, dim, totals, start * dim)


@part()
def keep_state(tile: Any, state: Any, rows: Any, head: Any, group: Any, dim: Any) -> None:
    """Write the state to where a later group of partitions, or decoding, finds it."""
    num_rows = rows.shape[0] * group
    peaks, sums, totals, lines = tile.peaks, tile.sums, tile.totals, tile.lines
    kept_peaks, kept_sums, kept_totals = state
    for start in range(0, num_rows, BLOCK_ROWS):
        _transpose(totals, start * dim, dim, BLOCK_ROWS, lines, 0)
        for row in range(start, min(start + BLOCK_ROWS, num_rows)):
            token, q_head = rows[row // group], head * group + row % group
            kept_peaks[token, q_head], kept_sums[token, q_head] = peaks[row], sums[row]
            source = lines[(row - start) * dim : (row - start + 1) * dim]
            target = kept_totals[token, q_head]
            for d in range(target.shape[0]):
                target[d] = source[d]


@part()
def join_sinks(tile: Any, sinks: Any, num_rows: Any, head: Any, group: Any) -> None:
    """Let the sinks of the rows' heads, powers of two, join the sums of weights."""
    peaks, sums, lines = tile.peaks, tile.sums, tile.lines
    for start in range(0, num_rows, BLOCK_ROWS):
        for row in range(BLOCK_ROWS):
            lines[row] = sinks[head * group + (start + row) % group]
        block = slice(start, start + BLOCK_ROWS)
        for half in range(0, BLOCK_ROWS, _LANES):
            add_sinks(lines, half, peaks[block], sums[block])


@part()
def write_results(tile: Any, rows: Any, head: Any, group: Any, dim: Any, out: Any) -> None:
    """Write the totals over the sums of weights to `out`, in its dtype."""
    num_rows = rows.shape[0] * group
    sums, totals, lines = tile.sums, tile.totals, tile.lines
    for start in range(0, num_rows, BLOCK_ROWS):
        own = totals[start * dim : (start + BLOCK_ROWS) * dim]
        for half in range(0, BLOCK_ROWS, _LANES):
            divide(own, half, sums[start : start + BLOCK_ROWS])
        _transpose(own, 0, dim, BLOCK_ROWS, lines, 0)
        for row in range(start, min(start + BLOCK_ROWS, num_rows)):
            source = lines[(row - start) * dim : (row - start + 1) * dim]
            target = out[rows[row // group], head * group + row % group]
            for d in range(target.shape[0]):
                target[d] = from_float32(source[d], out)


@part()
def _transpose(
    source: Any, start: Any, num_rows: Any, num_columns: Any, target: Any, target_start: Any
) -> None:
    """Copy [num_rows, num_columns] words to [num_columns, num_rows]; multiples of 16, both.

    The source may have two elements to a word.
    """
    elements = 4 // source.itemsize
    for row in range(0, num_rows, _LANES):
        for column in range(0, num_columns, _LANES):
            transpose_words(
                source,
                start + (row * num_columns + column) * elements,
                num_columns * elements,
                target,
                target_start + column * num_rows + row,
                num_rows,
            )
