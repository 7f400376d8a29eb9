"""Products of rows with panels of 32 columns in float32, on any processor.

Each output is one chain `fma(x[k], w[k], sum)` over k in ascending order. It has the same bits for
any number of rows, blocking and number of threads, and on every processor.

Rows are packed in blocks whose sums fill the registers; of a block, the elements of one k are
neighbors. Up to `FEW_ROWS` rows the weights are read once, and converted in registers. With more
rows, `CHUNK` rows of a panel become float32 in the cache for all blocks of a batch, unless they are
already. Threads take some panels of a batch at a time, and more of them if others are slower, or
with many rows have tiles of rows of their own.
"""

import functools
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import SERIAL_ELEMENTS, inlined, kernel
from pagedrun.kernels.cpu.linears.epilogue import COLUMNS as PANEL
from pagedrun.kernels.cpu.linears.epilogue import write_block
from pagedrun.kernels.cpu.simd.arrays import (
    LINE_BYTES,
    aligned_floats,
    next_task,
    prefetch_at,
    share_tasks,
)
from pagedrun.kernels.cpu.simd.block_product import block_product
from pagedrun.kernels.cpu.simd.lanes import store
from pagedrun.kernels.cpu.simd.words import read_lanes, transposing
from pagedrun.kernels.kernel_set import has_features

# Sums of a block: 24 of 32 registers with AVX-512, 12 of 16 with AVX2, 24 of 32 with NEON.
BLOCK, _VECTORS = (12, 2) if has_features("avx512f") else (6, 1)
FEW_ROWS = 4
_UNIT = 4 if BLOCK == 12 else 2  # whole blocks and blocks of four have a multiple of it
# In float32, a panel's chunk takes 16 KiB of L1, 8 KiB of it at a time with one vector.
CHUNK = 128
FEW_CHUNK = 64 if BLOCK == 12 else 32  # stays in L1 for the second half of columns
ROWS_AT_ONCE = 384  # their part of a chunk and their sums stay in L2
TASKS_OF_THREAD = 4  # so that threads wait for a small part of the whole at the end
PANELS_OF_TASK = 8 if BLOCK == 12 else 4  # their sums stay in L2
# Rows of each thread from which on it reads all weights: from memory, products take longer.
_MIN_TILE = 192

# With few rows weights are prefetched: beyond the end of a chunk the hardware does not.
_one = block_product(1, 2, ahead=64)
_four_alone = block_product(FEW_ROWS, _VECTORS, ahead=FEW_CHUNK)
_four, _first_four = (block_product(FEW_ROWS, _VECTORS, begins=each) for each in (False, True))
_full, _first_full = (
    block_product(BLOCK, _VECTORS, begins=each, are_neighbors=_VECTORS == 2)
    for each in (False, True)
)


class RowsOfExperts(NamedTuple):
    """Experts that have rows. segments: [num_used, 4] int64: expert, first row and end of its rows
    in the output, first row of its blocks. tokens: the row of x that each row reads; empty: x has
    a row for each. total: rows of all blocks.
    """

    segments: NDArray[np.int64]
    tokens: NDArray[np.int64]
    total: int

    @classmethod
    def of(cls, starts: NDArray[np.int64], tokens: NDArray[np.int64] | None) -> "RowsOfExperts":
        """Return the rows that `starts` and `tokens` assign; see `GroupedLinear`."""
        experts = np.flatnonzero(np.diff(starts))
        first, end = starts[experts], starts[experts + 1]
        count = end - first
        few = np.minimum(count * count, FEW_ROWS)  # 1 or 4
        whole = np.where(count > FEW_ROWS, -(-count // _UNIT) * _UNIT, few)
        places = np.concatenate([[0], np.cumsum(whole)])
        segments = np.stack([experts, first, end, places[:-1]], axis=1)
        tokens = np.empty(0, np.int64) if tokens is None else tokens
        return cls(segments, tokens, int(places[-1]))


_NO_TOKENS = np.empty(0, np.int64)


@functools.lru_cache(maxsize=256)
def all_rows(num_rows: int) -> RowsOfExperts:
    """Return the rows of one weight, for all rows of x."""
    total = num_rows
    if num_rows > 1:
        total = max(FEW_ROWS, -(-num_rows // _UNIT) * _UNIT)
    return RowsOfExperts(np.array([[0, 0, num_rows, 0]]), _NO_TOKENS, total)


@kernel
def multiply_panels(
    num_threads: Any, x: Any, chosen: Any, weights: Any, bias: Any, out: Any
) -> None:
    """Write the products of rows of x with the weights of their experts to `out`.

    x: [num_tokens, in_features] float32 or bits of bfloat16. chosen: `RowsOfExperts`. weights:
    [num_experts * num_panels, in_features, 32] float32 or bits of bfloat16, or a quantized weight
    that `read_chunk` reads. bias: float32, 32 numbers for each panel, or empty. out: [num_rows,
    out_features], float32 or bits of bfloat16. Threads take tasks of some panels, those of one
    expert after the other.
    """
    num_panels, num_k = (out.shape[1] + PANEL - 1) // PANEL, x.shape[1]
    segments = chosen.segments
    rows = aligned_floats(chosen.total * num_k)
    for used in range(segments.shape[0]):
        num_rows = segments[used, 2] - segments[used, 1]
        total = whole_blocks(num_rows)
        num_blocks = (total + BLOCK - 1) // BLOCK
        if total * num_k <= SERIAL_ELEMENTS:
            for block in range(num_blocks):
                _pack_block(x, chosen.tokens, segments[used], block, num_rows, total, rows)
        else:
            for block in numba.prange(num_blocks):
                _pack_block(x, chosen.tokens, segments[used], block, num_rows, total, rows)
    cut = cut_panels(num_threads, segments.shape[0], num_panels, PANELS_OF_TASK)
    for thread in numba.prange(num_threads):
        while True:
            used, start, end = next_panels(cut, thread)
            if start == end:
                break
            first, last = segments[used, 1], segments[used, 2]
            total = whole_blocks(last - first)
            offset = segments[used, 0] * num_panels  # of the expert's first panel
            own_rows = rows[segments[used, 3] * num_k : (segments[used, 3] + total) * num_k]
            own_bias = bias[offset * PANEL :]
            if total <= FEW_ROWS:
                sums = aligned_floats(FEW_ROWS * PANEL)
                for panel in range(start, end):
                    sums[:] = np.float32(0.0)
                    _few_rows(own_rows, total, num_k, weights, offset + panel, sums)
                    write_block(sums, 0, last - first, own_bias, first, panel * PANEL, out)
                continue
            chunk = aligned_floats(CHUNK * PANEL)
            sums = aligned_floats((end - start) * min(total, ROWS_AT_ONCE + 2 * BLOCK) * PANEL)
            shape, panels = (first, last - first, total, num_k), (offset, start, end)
            _multiply_rows(own_rows, shape, weights, panels, own_bias, chunk, sums, out)


@inlined()
def cut_panels(num_threads: Any, num_used: Any, num_panels: Any, at_once: Any) -> Any:
    """Return a cut into tasks for `next_panels`: at most `at_once` panels of an expert with rows.

    A thread has `TASKS_OF_THREAD` or more if there are as many panels.
    """
    share = num_used * num_panels // (TASKS_OF_THREAD * num_threads)
    size = max(1, min(share, at_once))
    pieces = max(1, (num_panels + size - 1) // size)
    return share_tasks(num_threads, num_used * pieces), num_panels, size, pieces


@inlined()
def next_panels(cut: Any, thread: Any) -> Any:
    """Return a task's expert among those with rows, its first panel, and the one behind its last.

    Each task is returned once, see `next_task`; after them, no panels. Tasks of an expert are
    neighbors.
    """
    tasks, num_panels, size, pieces = cut
    task = next_task(tasks, thread)
    if task < 0:
        return 0, 0, 0
    start = task % pieces * size
    return task // pieces, start, min(num_panels, start + size)


def rows_of_tile(num_rows: int, num_threads: int) -> int:
    """Return the rows of a tile of `multiply_row_tiles`; 0: `multiply_panels` is faster."""
    if num_rows < num_threads * _MIN_TILE:
        return 0
    num_tiles = num_threads * -(-num_rows // (num_threads * ROWS_AT_ONCE))
    return -(-num_rows // (num_tiles * BLOCK)) * BLOCK


@kernel
def multiply_row_tiles(tile_rows: Any, x: Any, weights: Any, bias: Any, out: Any) -> None:
    """Write the products of many rows of x with one weight to `out`; see `multiply_panels`.

    A thread packs `tile_rows` rows at a time, a multiple of `BLOCK`, into its cache, and multiplies
    them by all panels.
    """
    num_panels, num_rows = (out.shape[1] + PANEL - 1) // PANEL, x.shape[0]
    num_k, no_tokens = x.shape[1], np.empty(0, np.int64)
    for tile in numba.prange((num_rows + tile_rows - 1) // tile_rows):
        first = tile * tile_rows
        height = min(tile_rows, num_rows - first)
        total = max(FEW_ROWS, whole_blocks(height))  # the last tile may have a single row
        rows = aligned_floats(total * num_k)
        for block in range((total + BLOCK - 1) // BLOCK):
            segment = 0, first, first + height, 0
            _pack_block(x, no_tokens, segment, block, height, total, rows)
        chunk = aligned_floats(CHUNK * PANEL)
        sums = aligned_floats(PANELS_OF_TASK * total * PANEL)
        shape = first, height, total, num_k
        for start in range(0, num_panels, PANELS_OF_TASK):
            panels = 0, start, min(num_panels, start + PANELS_OF_TASK)
            _multiply_rows(rows, shape, weights, panels, bias, chunk, sums, out)


@inlined()
def _multiply_rows(
    rows: Any, shape: Any, weights: Any, panels: Any, bias: Any, chunk: Any, sums: Any, out: Any
) -> None:
    """Write the products of rows in blocks of `FEW_ROWS` or more with some panels to `out`.

    shape: first row in `out`, rows, rows of whole blocks, elements of a row. panels: panels of the
    weights before the first, number of the first, and of the one behind the last. chunk: memory of
    a chunk. sums: memory of the panels' sums for `ROWS_AT_ONCE` rows and the last blocks.
    """
    first, height, total, num_k = shape
    offset, start, end = panels
    full, row = rows_in_full_blocks(total), 0
    operand = _operand(weights, chunk)
    while row < total:
        stop = row + ROWS_AT_ONCE if row + ROWS_AT_ONCE < full else total
        size, bounds = (stop - row) * PANEL, (row, min(full, stop), stop)
        for k in range(0, num_k, CHUNK):
            terms = k, min(CHUNK, num_k - k)
            for panel in range(start, end):
                following = panel + 1 if panel + 1 < end else start
                later = k if panel + 1 < end else k + CHUNK
                ahead = lines_of_chunk(weights, offset + following, later)
                b = _place_of_terms(weights, offset + panel, terms, chunk)
                c = (panel - start) * size
                _many_rows(rows, num_k, bounds, terms, operand, b, sums, c, ahead)
        # A few rows at a time, so that a row's panels are written side by side.
        for i in range(row, stop, BLOCK):
            num_rows = min(min(i + BLOCK, stop), height) - i
            for panel in range(start, end):
                place = (panel - start) * size + (i - row) * PANEL
                write_block(sums, place, num_rows, bias, first + i, panel * PANEL, out)
        row = stop


@inlined()
def _pack_block(
    x: Any, tokens: Any, segment: Any, block: Any, num_rows: Any, total: Any, rows: Any
) -> None:
    """Write `BLOCK` rows of an expert, or its last ones, into their blocks.

    Rows beyond the last have zeros.
    """
    first = block * BLOCK
    done = 0
    if tokens.shape[0] == 0 and first + BLOCK <= rows_in_full_blocks(total):
        row, place = segment[1] + first, (segment[3] + first) * x.shape[1]
        if first + _TURNED <= num_rows:
            done = _turn_rows(x, row, rows, place)
    for i in range(first, min(first + BLOCK, total)):
        _pack_row(x, tokens, segment, i, done, num_rows, total, rows)


@inlined()
def _pack_row(
    x: Any, tokens: Any, segment: Any, i: Any, done: Any, num_rows: Any, total: Any, rows: Any
) -> None:
    """Write row i of an expert, from element `done` on."""
    num_k = x.shape[1]
    height, first = block_of_row(i, total)
    place = (segment[3] + first) * num_k + i - first
    if i >= num_rows:
        for k in range(num_k):
            rows[place + k * height] = np.float32(0.0)
        return
    row = segment[1] + i
    source = x[tokens[row] if tokens.shape[0] > 0 else row]
    target = rows[place:]
    if height == 1:
        for k in range(num_k):
            target[k] = to_float32(source[k])
    else:
        for k in range(done, num_k):
            target[k * height] = to_float32(source[k])


_TURNED = 16 if BLOCK > 8 else 8  # rows that become columns at once
_turn = transposing(_TURNED)


def _turn_rows(x: Any, row: Any, rows: Any, place: Any) -> Any:
    """Inside kernels: write a block of rows of x, and return how many of their elements it wrote.

    `_TURNED` rows of x are read; none if that is not how they are best copied.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(_turn_rows, strict=False)
def _overload_turn_rows(x: Any, row: Any, rows: Any, place: Any) -> Any:
    if x.dtype != types.float32:
        return lambda x, row, rows, place: 0

    def turn(x: Any, row: Any, rows: Any, place: Any) -> Any:
        # A column of `_TURNED` rows is stored at a time, whose last ones the next overwrites.
        num_k, done = x.shape[1], 0
        while done + _TURNED < num_k:
            start = row * num_k + done
            _turn(x, start, num_k, rows, place + done * BLOCK, BLOCK)
            done += _TURNED
        return done

    return turn


@inlined()
def block_of_row(i: Any, total: Any) -> Any:
    """Return the height of the block of row i of whole blocks, and its first row."""
    full = rows_in_full_blocks(total)
    if i < full:
        return BLOCK, i // BLOCK * BLOCK
    height = min(total, FEW_ROWS)
    return height, full + (i - full) // height * height


@inlined()
def rows_in_full_blocks(total: Any) -> Any:
    """Return how many rows of whole blocks lie in those of `BLOCK` rows."""
    if total <= FEW_ROWS:
        return 0
    rows = total
    while rows % BLOCK > 0:
        rows -= FEW_ROWS
    return rows


@inlined()
def whole_blocks(num_rows: Any) -> Any:
    """Return the rows of whole blocks: of 1 or 4 rows, or of `BLOCK` and then of 4."""
    if num_rows <= 1:
        return num_rows
    return max(FEW_ROWS, (num_rows + _UNIT - 1) // _UNIT * _UNIT)


@inlined()
def _many_rows(
    rows: Any,
    num_k: Any,
    bounds: Any,
    terms: Any,
    chunk: Any,
    place: Any,
    sums: Any,
    target: Any,
    ahead: Any,
) -> None:
    """Add the products of a batch's blocks with a chunk, which begins at `place`. bounds: first
    row, end of full blocks, end of blocks of four. terms: first, and their number. ahead: address
    and number of the cache lines of the next chunk."""
    first, full, stop = bounds
    address, num_lines = ahead
    k, num_terms = terms
    blocks = (full - first) // BLOCK + (stop - max(first, full) + FEW_ROWS - 1) // FEW_ROWS
    blocks *= PANEL // (16 * _VECTORS)
    share = (num_lines + blocks - 1) // blocks
    for column in range(0, PANEL, 16 * _VECTORS):
        b = place + column
        for row in range(first, full, BLOCK):
            prefetch_at(address, share)
            address += share * LINE_BYTES
            a, c = row * num_k + k * BLOCK, target + (row - first) * PANEL + column
            if k == 0:
                _first_full(rows, a, 1, BLOCK, chunk, b, PANEL, num_terms, sums, c, PANEL)
            else:
                _full(rows, a, 1, BLOCK, chunk, b, PANEL, num_terms, sums, c, PANEL)
        for row in range(max(first, full), stop, FEW_ROWS):
            prefetch_at(address, share)
            address += share * LINE_BYTES
            a, c = row * num_k + k * FEW_ROWS, target + (row - first) * PANEL + column
            if k == 0:
                _first_four(rows, a, 1, FEW_ROWS, chunk, b, PANEL, num_terms, sums, c, PANEL)
            else:
                _four(rows, a, 1, FEW_ROWS, chunk, b, PANEL, num_terms, sums, c, PANEL)


@inlined()
def _add_few_rows(
    rows: Any, height: Any, k: Any, num_terms: Any, operand: Any, place: Any, sums: Any
) -> None:
    """Add the products of a block of 1 or 4 rows with some terms."""
    a = k * height
    if height == 1:
        _one(rows, a, 1, 1, operand, place, PANEL, num_terms, sums, 0, PANEL)
    else:
        for column in range(0, PANEL, 16 * _VECTORS):
            b = place + column
            _four_alone(rows, a, 1, FEW_ROWS, operand, b, PANEL, num_terms, sums, column, PANEL)


def read_chunk(weights: Any, panel: Any, k: Any, num_terms: Any, chunk: Any) -> None:
    """Inside kernels: write float32 weights [num_terms, 32] of a panel, from input k on."""
    raise NotImplementedError("only compiled code calls this")


def _operand(weights: Any, chunk: Any) -> Any:
    """Inside kernels: return the float32 array that many rows are multiplied with."""
    raise NotImplementedError("only compiled code calls this")


def _place_of_terms(weights: Any, panel: Any, terms: Any, chunk: Any) -> Any:
    """Inside kernels: return the flat index of a panel's terms in the `_operand`, written there if
    that is `chunk`. terms: first, and their number."""
    raise NotImplementedError("only compiled code calls this")


def lines_of_chunk(weights: Any, panel: Any, k: Any) -> Any:
    """Inside kernels: return address and number of the cache lines of a chunk in memory, for
    weights that are not prefetched when they are unpacked."""
    raise NotImplementedError("only compiled code calls this")


def _is_operand(weights: Any) -> bool:
    return isinstance(weights, types.Array) and weights.dtype == types.float32


@overload(_operand, strict=False)
def _overload_operand(weights: Any, chunk: Any) -> Any:
    if _is_operand(weights):
        return lambda weights, chunk: weights
    return lambda weights, chunk: chunk


@overload(_place_of_terms, strict=False)
def _overload_place(weights: Any, panel: Any, terms: Any, chunk: Any) -> Any:
    if _is_operand(weights):
        return lambda weights, panel, terms, chunk: (panel * weights.shape[1] + terms[0]) * PANEL

    def converted(weights: Any, panel: Any, terms: Any, chunk: Any) -> Any:
        read_chunk(weights, panel, terms[0], terms[1], chunk)
        return 0

    return converted


@overload(lines_of_chunk, strict=False)
def _overload_lines(weights: Any, panel: Any, k: Any) -> Any:
    if not isinstance(weights, types.Array):
        return lambda weights, panel, k: (np.int64(0), np.int64(0))

    def lines(weights: Any, panel: Any, k: Any) -> Any:
        row_bytes = PANEL * weights.itemsize
        start = weights.ctypes.data + (panel * weights.shape[1] + k) * row_bytes
        return np.int64(start), np.int64(CHUNK * row_bytes // LINE_BYTES)

    return lines


def _few_rows(rows: Any, height: Any, num_k: Any, weights: Any, panel: Any, sums: Any) -> None:
    """Inside kernels: add the products of a block of 1 or 4 rows with a panel."""
    raise NotImplementedError("only compiled code calls this")


@overload(read_chunk, strict=False)
def _overload_read_chunk(weights: Any, panel: Any, k: Any, num_terms: Any, chunk: Any) -> Any:
    if not isinstance(weights, types.Array):
        return None

    def converted(weights: Any, panel: Any, k: Any, num_terms: Any, chunk: Any) -> None:
        start = (panel * weights.shape[1] + k) * PANEL
        for i in range(0, num_terms * PANEL, 16):
            store(chunk, i, read_lanes(weights, start + i))

    return converted


@overload(_few_rows, strict=False)
def _overload_few_rows(
    rows: Any, height: Any, num_k: Any, weights: Any, panel: Any, sums: Any
) -> Any:
    if isinstance(weights, types.Array):

        def in_place(
            rows: Any, height: Any, num_k: Any, weights: Any, panel: Any, sums: Any
        ) -> None:
            for k in range(0, num_k, FEW_CHUNK):
                num_terms, place = min(FEW_CHUNK, num_k - k), (panel * num_k + k) * PANEL
                _add_few_rows(rows, height, k, num_terms, weights, place, sums)

        return in_place

    def in_chunks(rows: Any, height: Any, num_k: Any, weights: Any, panel: Any, sums: Any) -> None:
        chunk = aligned_floats(CHUNK * PANEL)
        for k in range(0, num_k, CHUNK):
            num_terms = min(CHUNK, num_k - k)
            read_chunk(weights, panel, k, num_terms, chunk)
            _add_few_rows(rows, height, k, num_terms, chunk, 0, sums)

    return in_chunks
