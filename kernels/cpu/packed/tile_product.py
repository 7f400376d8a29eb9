"""Products of bfloat16 with weights of few bits on AMX tiles, sums in float32.

The weight is the left operand: sixteen of its rows are a tile. Each output is one chain over k,
tile by tile in ascending order, of the numbers that the weights are in bfloat16: it has the bits of
`pagedrun.kernels.cpu.linears.tile_linear` with these.

A step's weights are written to the cache and multiplied one step later, when they have arrived
there. Up to 32 rows of inputs pass them at once; with more, sixteen steps of weights stay in L1
while the rows pass.
"""

from typing import Any

import numba

from pagedrun.kernels.cpu.jit import kernel, part
from pagedrun.kernels.cpu.linears.block_epilogue import write_block
from pagedrun.kernels.cpu.packed.code_arrays import PANEL, STEP
from pagedrun.kernels.cpu.packed.unpack import (
    NUMBER_BYTES,
    TABLE_BYTES,
    begin_group,
    second_numbers,
    unpack_step,
)
from pagedrun.kernels.cpu.simd.aligned import aligned_floats
from pagedrun.kernels.cpu.simd.amx import (
    configure,
    dot_00,
    dot_01,
    dot_10,
    dot_11,
    load_00,
    load_01,
    load_10,
    load_11,
    load_a0,
    load_a1,
    load_b0,
    load_b1,
    release,
    store_00,
    store_01,
    store_10,
    store_11,
    zero_00,
    zero_01,
    zero_10,
    zero_11,
)
from pagedrun.kernels.cpu.simd.prefetch import prefetch_at, prefetch_lines
from pagedrun.kernels.cpu.simd.words import transpose_words

ROWS = 16  # of a block of inputs
FEW_BLOCKS = 2
CHUNK_STEPS = 16
BLOCKS_AT_ONCE = 32  # their part of a chunk stays in L2
PANELS_OF_TASK = 4
_BYTES_AHEAD = 8192  # of a weight's memory, that are asked for before they are needed
_TILE = 256  # words
_STEP_BYTES = 2 * PANEL * STEP  # of a step's weights
_PAIR = 4 * _TILE  # the sums of two blocks with a panel

_prefetch_tile = prefetch_lines(16, level=1)


@kernel
def multiply_tiles(inputs: Any, weight: Any, bias: Any, shapes: Any, out: Any) -> None:
    """Multiply blocks of inputs with a weight.

    inputs: [num_blocks, num_steps, 16, 16] words of two bfloat16, sixteen rows side by side, or
    fewer, in one block. shapes: of the tiles, for as many.
    weight: `CodeArrays`. bias: float32, one for each output of all panels, or empty. out:
    [num_rows, out_features], bits of bfloat16.
    """
    num_panels = (out.shape[1] + PANEL - 1) // PANEL
    num_pairs = (min(inputs.shape[0], BLOCKS_AT_ONCE) + 1) // 2
    for task in numba.prange((num_panels + PANELS_OF_TASK - 1) // PANELS_OF_TASK):
        configure(shapes)
        memory = aligned_floats((NUMBER_BYTES + PANEL * TABLE_BYTES) // 4)
        numbers = memory.ctypes.data
        tables = numbers + NUMBER_BYTES
        steps = aligned_floats(CHUNK_STEPS * _STEP_BYTES // 4)
        sums = aligned_floats(num_pairs * _PAIR)
        rows = aligned_floats(2 * ROWS * PANEL)
        first = task * PANELS_OF_TASK
        for panel in range(first, min(num_panels, first + PANELS_OF_TASK)):
            if inputs.shape[0] <= FEW_BLOCKS:
                _few_blocks(inputs, weight, panel, numbers, tables, steps, sums)
                _write(sums, 0, inputs.shape[0], rows, bias, 0, panel, out)
                continue
            for block in range(0, inputs.shape[0], BLOCKS_AT_ONCE):
                end = min(inputs.shape[0], block + BLOCKS_AT_ONCE)
                _many_blocks(inputs, block, end, weight, panel, numbers, tables, steps, sums)
                for pair in range((end - block + 1) // 2):
                    row = (block + 2 * pair) * ROWS
                    num_blocks = min(2, end - block - 2 * pair)
                    _write(sums, pair * _PAIR, num_blocks, rows, bias, row, panel, out)
        release()
        memory[0] = 0  # Numba frees an array behind its last use, and knows of none by address


@part()
def _few_blocks(
    inputs: Any, weight: Any, panel: Any, numbers: Any, tables: Any, steps: Any, sums: Any
) -> None:
    """Compute the sums of one or two blocks with a panel, which waits for the weights."""
    num_steps, target = weight.num_steps, steps.ctypes.data
    width = inputs.shape[3]
    other = (inputs.shape[0] - 1) * num_steps * _TILE
    kind, step_bytes, above_bytes = weight.kind, weight.step_bytes, weight.above_bytes
    codes = weight.codes + panel * num_steps * step_bytes
    above = weight.above + panel * num_steps * above_bytes
    second = second_numbers(weight, numbers)
    zero_00()
    zero_01()
    zero_10()
    zero_11()
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
        w, x = step % 2 * _STEP_BYTES // 4, step * ROWS * width
        load_b0(inputs, x, 4 * width)
        load_a0(steps, w, 64)
        load_a1(steps, w + _TILE, 64)
        dot_00()
        dot_10()
        if other > 0:
            load_b1(inputs, x + other, 64)
            dot_01()
            dot_11()
    _store(sums, 0)


@part()
def _many_blocks(
    inputs: Any,
    first: Any,
    last: Any,
    weight: Any,
    panel: Any,
    numbers: Any,
    tables: Any,
    chunk: Any,
    sums: Any,
) -> None:
    """Compute the sums of blocks first .. last - 1 with a panel.

    A chain that is interrupted goes on from its sum. An odd last block is computed twice.
    """
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
                zero_00()
                zero_01()
                zero_10()
                zero_11()
            else:
                load_00(sums, place, 64)
                load_10(sums, place + _TILE, 64)
                load_01(sums, place + 2 * _TILE, 64)
                load_11(sums, place + 3 * _TILE, 64)
            w = 0
            for _ in range(steps):
                load_b0(inputs, x, 64)
                load_a0(chunk, w, 64)
                load_b1(inputs, y, 64)
                load_a1(chunk, w + _TILE, 64)
                dot_00()
                _prefetch_tile(inputs, x + _TILE)
                dot_01()
                dot_10()
                _prefetch_tile(inputs, y + _TILE)
                dot_11()
                w += _STEP_BYTES // 4
                x += _TILE
                y += _TILE
            _store(sums, place)


@part()
def _store(sums: Any, place: Any) -> None:
    """Write the tiles of sums, [2 blocks, 2 halves of a panel, 16 columns, 16 rows]."""
    store_00(sums, place, 64)
    store_10(sums, place + _TILE, 64)
    store_01(sums, place + 2 * _TILE, 64)
    store_11(sums, place + 3 * _TILE, 64)


@part()
def _write(
    sums: Any,
    place: Any,
    num_blocks: Any,
    rows: Any,
    bias: Any,
    row: Any,
    panel: Any,
    out: Any,
) -> None:
    """Turn the sums of one or two blocks to rows [32, 32] and write these."""
    for half in range(2):
        transpose_words(sums, place + half * _TILE, ROWS, rows, half * ROWS, PANEL)
        if num_blocks > 1:
            start = place + (2 + half) * _TILE
            transpose_words(sums, start, ROWS, rows, ROWS * PANEL + half * ROWS, PANEL)
    write_block(rows, 0, num_blocks * ROWS, bias, row, panel * PANEL, out)
