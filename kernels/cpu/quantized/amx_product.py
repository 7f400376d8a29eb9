"""Products of bfloat16 with quantized weights on AMX tiles, sums in float32.

The weight is the left operand: sixteen of its rows are a tile. Each output is one chain of sums
over k, tile by tile in ascending order, of weights rounded to bfloat16: it has the bits of
`pagedrun.kernels.cpu.linears.amx_linear` with these weights, and of `grouped_linear` for experts.

The weights of a step are written to the cache and multiplied one step later, when the stores have
completed. Up to 32 rows of inputs are multiplied at once; with more, sixteen steps of weights stay
in L1 for all rows. Inputs are in blocks of sixteen rows, interleaved.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.grouped_linear import ExpertBlocks
from pagedrun.kernels.cpu.jit import choose_threads, inlined, kernel
from pagedrun.kernels.cpu.linears.epilogue import write_block
from pagedrun.kernels.cpu.linears.panel_product import cut_panels, next_panels
from pagedrun.kernels.cpu.quantized.code_arrays import PANEL, STEP
from pagedrun.kernels.cpu.quantized.unpack import (
    NUMBER_BYTES,
    TABLE_BYTES,
    begin_group,
    second_numbers,
    unpack_step,
)
from pagedrun.kernels.cpu.simd import amx
from pagedrun.kernels.cpu.simd.arrays import (
    aligned_empty,
    aligned_floats,
    prefetch_at,
    prefetch_lines,
)
from pagedrun.kernels.cpu.simd.words import transpose_words

ROWS = 16  # of a block of inputs
FEW_BLOCKS = 2
CHUNK_STEPS = 16
BLOCKS_AT_ONCE = 32  # their part of a chunk stays in L2
_BYTES_AHEAD = 8192  # prefetch distance in a weight's memory
_TILE = 256  # words
_STEP_BYTES = 2 * PANEL * STEP  # of a step's weights
_PAIR = 4 * _TILE  # the sums of two blocks with a panel

_prefetch_tile = prefetch_lines(16, level=1)


@kernel
def multiply_tiles(
    num_threads: Any, inputs: Any, segments: Any, weight: Any, bias: Any, shapes: Any, out: Any
) -> None:
    """Multiply blocks of inputs with the weights of their experts.

    inputs: [num_blocks, num_steps, 16, 16] words of two bfloat16, sixteen rows side by side, or
    fewer, in one block. segments: [num_used, 4] int64: expert, first row and end of its rows in
    the output, first of its blocks. shapes: of the tiles, for as many rows of a block.
    weight: `CodeArrays`. bias: float32, one for each output of all panels, or empty. out:
    [num_rows, out_features], bits of bfloat16.
    """
    num_panels, num_used = (out.shape[1] + PANEL - 1) // PANEL, segments.shape[0]
    cut = cut_panels(num_threads, num_used, num_panels, num_panels)
    for thread in numba.prange(num_threads):
        while True:
            used, start, end = next_panels(cut, thread)
            if start == end:
                break
            amx.configure(shapes)
            memory = aligned_floats((NUMBER_BYTES + PANEL * TABLE_BYTES) // 4)
            numbers = memory.ctypes.data
            tables = numbers + NUMBER_BYTES
            steps = aligned_floats(CHUNK_STEPS * _STEP_BYTES // 4)
            rows = aligned_floats(2 * ROWS * PANEL)
            first, last, own_block = segments[used, 1], segments[used, 2], segments[used, 3]
            num_blocks = (last - first + ROWS - 1) // ROWS
            sums = aligned_floats((min(num_blocks, BLOCKS_AT_ONCE) + 1) // 2 * _PAIR)
            offset = segments[used, 0] * num_panels  # of the expert's first panel
            own_bias = bias[offset * PANEL :]
            for panel in range(start, end):
                if num_blocks <= FEW_BLOCKS:
                    blocks = own_block, num_blocks
                    _few_blocks(
                        inputs, blocks, weight, offset + panel, numbers, tables, steps, sums
                    )
                    _write(sums, 0, last - first, rows, own_bias, first, panel, out)
                    continue
                for block in range(0, num_blocks, BLOCKS_AT_ONCE):
                    count = min(num_blocks - block, BLOCKS_AT_ONCE)
                    blocks = own_block + block, count
                    _many_blocks(
                        inputs, blocks, weight, offset + panel, numbers, tables, steps, sums
                    )
                    for pair in range((count + 1) // 2):
                        row = first + (block + 2 * pair) * ROWS
                        num_rows = min(2 * ROWS, last - row)
                        _write(sums, pair * _PAIR, num_rows, rows, own_bias, row, panel, out)
            amx.release()
            memory[0] = 0  # Numba frees an array after its last use, and does not track addresses


@inlined()
def _few_blocks(
    inputs: Any,
    blocks: Any,
    weight: Any,
    panel: Any,
    numbers: Any,
    tables: Any,
    steps: Any,
    sums: Any,
) -> None:
    """Compute the sums of one or two blocks with a panel, bound by reading weights.

    blocks: the first, and their number.
    """
    num_steps, target = weight.num_steps, steps.ctypes.data
    width = inputs.shape[3]
    begin, other = blocks[0] * num_steps * _TILE, (blocks[1] - 1) * num_steps * _TILE
    kind, step_bytes, above_bytes = weight.kind, weight.step_bytes, weight.above_bytes
    codes = weight.codes + panel * num_steps * step_bytes
    above = weight.above + panel * num_steps * above_bytes
    second = second_numbers(weight, numbers)
    amx.zero_sums()
    left = begin_group(weight, panel, 0, numbers, tables)
    unpack_step(kind, codes, above, numbers, second, tables, target)
    for step in range(num_steps):
        if step + 1 < num_steps:
            if left > 0:
                left -= 1
            else:
                left = begin_group(weight, panel, step + 1, numbers, tables)
            codes += step_bytes
            above += above_bytes
            prefetch_at(codes + _BYTES_AHEAD, step_bytes // 64)
            prefetch_at(above + _BYTES_AHEAD // 4, above_bytes // 64)
            other_half = target + (step + 1) % 2 * _STEP_BYTES
            unpack_step(kind, codes, above, numbers, second, tables, other_half)
        w, x = step % 2 * _STEP_BYTES // 4, begin + step * ROWS * width
        amx.load_b0(inputs, x, 4 * width)
        amx.load_a0(steps, w, 64)
        amx.load_a1(steps, w + _TILE, 64)
        amx.dot_00()
        amx.dot_10()
        if other > 0:
            amx.load_b1(inputs, x + other, 64)
            amx.dot_01()
            amx.dot_11()
    amx.store_tiles(sums, 0)


@inlined()
def _many_blocks(
    inputs: Any,
    blocks: Any,
    weight: Any,
    panel: Any,
    numbers: Any,
    tables: Any,
    chunk: Any,
    sums: Any,
) -> None:
    """Compute the sums of many blocks with a panel; see `_few_blocks`.

    An interrupted chain continues from its sum. An odd last block is computed twice.
    """
    first, last = blocks[0], blocks[0] + blocks[1]
    num_steps, num_pairs = weight.num_steps, (last - first + 1) // 2
    size = num_steps * _TILE
    target = chunk.ctypes.data
    kind, step_bytes, above_bytes = weight.kind, weight.step_bytes, weight.above_bytes
    codes = weight.codes + panel * num_steps * step_bytes
    above = weight.above + panel * num_steps * above_bytes
    second = second_numbers(weight, numbers)
    left = 0
    for begin in range(0, num_steps, CHUNK_STEPS):
        steps = min(CHUNK_STEPS, num_steps - begin)
        for step in range(steps):
            if left > 0:
                left -= 1
            else:
                left = begin_group(weight, panel, begin + step, numbers, tables)
            target_of_step = target + step * _STEP_BYTES
            unpack_step(kind, codes, above, numbers, second, tables, target_of_step)
            codes += step_bytes
            above += above_bytes
        for pair in range(num_pairs):
            x = (first + 2 * pair) * size + begin * _TILE
            y = min(first + 2 * pair + 1, last - 1) * size + begin * _TILE
            place = pair * _PAIR
            if begin == 0:
                amx.zero_sums()
            else:
                amx.load_tiles(sums, place)
            w = 0
            for _ in range(steps):
                amx.load_b0(inputs, x, 64)
                amx.load_a0(chunk, w, 64)
                amx.load_b1(inputs, y, 64)
                amx.load_a1(chunk, w + _TILE, 64)
                amx.dot_00()
                _prefetch_tile(inputs, x + _TILE)
                amx.dot_01()
                amx.dot_10()
                _prefetch_tile(inputs, y + _TILE)
                amx.dot_11()
                w += _STEP_BYTES // 4
                x += _TILE
                y += _TILE
            amx.store_tiles(sums, place)


@inlined()
def _write(
    sums: Any,
    place: Any,
    num_rows: Any,
    rows: Any,
    bias: Any,
    row: Any,
    panel: Any,
    out: Any,
) -> None:
    """Transpose the sums of one or two blocks to rows [32, 32] and write them."""
    for half in range(2):
        transpose_words(sums, place + half * _TILE, ROWS, rows, half * ROWS, PANEL)
        if num_rows > ROWS:
            start = place + (2 + half) * _TILE
            transpose_words(sums, start, ROWS, rows, ROWS * PANEL + half * ROWS, PANEL)
    write_block(rows, 0, num_rows, bias, row, panel * PANEL, out)


ROWS = 16
STEP = 32
NARROW_ROWS = 4


def input_blocks(x: NDArray[np.uint16], num_steps: int) -> NDArray[np.uint32]:
    """Return x [num_rows, in_features], bits of bfloat16, as words of two neighbors.

    Returns [num_blocks, num_steps, 16, width]: for each pair of inputs, sixteen rows, or as few as
    there are, which then take less of the cache. Zeros follow the last row and the last input.
    """
    if len(x) <= NARROW_ROWS:
        few = aligned_empty((1, num_steps, ROWS, len(x)), np.uint32)
        choose_threads(0)
        _pack_narrow(x, few.reshape(-1, len(x)))
        return few
    blocks = aligned_empty((-(-len(x) // ROWS), num_steps, ROWS, ROWS), np.uint32)
    choose_threads(blocks.size)
    _pack(x, blocks)
    return blocks


def blocks_of_experts(
    x: NDArray[np.uint16], starts: NDArray[np.int64], tokens: NDArray[np.int64] | None
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return blocks of the rows of x that experts read, see `GroupedLinear`, and the segments."""
    blocks = ExpertBlocks.of(x, starts, tokens, pairs=True)
    inputs = blocks.inputs.reshape(len(blocks.inputs), -1, ROWS, ROWS)
    facts = blocks.experts, blocks.starts, blocks.ends, blocks.first_blocks[:-1]
    return inputs, np.stack(facts, axis=1)


@kernel
def _pack_narrow(x: Any, words: Any) -> None:
    for pair in numba.prange(words.shape[0]):
        for row in range(words.shape[1]):
            low, high = np.uint32(0), np.uint32(0)
            if 2 * pair < x.shape[1]:
                low = np.uint32(x[row, 2 * pair])
            if 2 * pair + 1 < x.shape[1]:
                high = np.uint32(x[row, 2 * pair + 1])
            words[pair, row] = np.uint32(low | np.uint32(high << np.uint32(16)))


@kernel
def _pack(x: Any, blocks: Any) -> None:
    num_steps = blocks.shape[1]
    for block in numba.prange(blocks.shape[0]):
        rows = np.zeros(ROWS * num_steps * STEP, np.uint16)
        for i in range(min(ROWS, x.shape[0] - block * ROWS)):
            start = i * num_steps * STEP
            source, target = x[block * ROWS + i], rows[start : start + x.shape[1]]
            for k in range(source.shape[0]):
                target[k] = source[k]
        words = rows.view(np.uint32)
        for step in range(num_steps):
            place = (block * num_steps + step) * ROWS * ROWS
            transpose_words(words, step * ROWS, num_steps * ROWS, blocks, place, ROWS)
