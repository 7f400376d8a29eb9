"""Products of experts on AMX tiles: bfloat16 in and out, sums in float32.

The weight is the left operand: sixteen of its rows are a tile as they lie in a file. Each output is
one chain over k, tile by tile in ascending order; see `pagedrun.kernels.cpu.linears.tile_linear`.
"""

from typing import Any

import numba

from pagedrun.kernels.cpu.experts.expert_blocks import ROWS, STEP
from pagedrun.kernels.cpu.experts.panels import PANEL, add_bias, panel_operand, write_rows
from pagedrun.kernels.cpu.jit import kernel, part
from pagedrun.kernels.cpu.simd.aligned import aligned_floats, aligned_zeros
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
from pagedrun.kernels.cpu.simd.memory import array_at
from pagedrun.kernels.cpu.simd.words import transpose_words

FEW_BLOCKS = 2
CHUNK_STEPS = 16
_TILE = ROWS * ROWS  # words of inputs, or sums
_PAIR = 4 * _TILE  # the sums of two blocks with a panel


@kernel
def multiply_tiles(
    num_shares: Any,
    addresses: Any,
    weight_like: Any,
    bias: Any,
    shapes: Any,
    num_columns: Any,
    num_k: Any,
    experts: Any,
    starts: Any,
    ends: Any,
    first_blocks: Any,
    inputs: Any,
    out: Any,
) -> None:
    """Multiply blocks of inputs with the weights of their experts; see `multiply_chains`.

    shapes: what `configure` takes. Weights and `out` are bits of bfloat16, inputs words of two.
    """
    panels_of_part = (num_columns + PANEL - 1) // PANEL
    num_panels = addresses.shape[1] * panels_of_part
    share = (num_panels + num_shares - 1) // num_shares
    for task in numba.prange(num_shares * experts.shape[0] * share):
        used = task // share % experts.shape[0]
        place = task // share // experts.shape[0] * share + task % share
        if place >= num_panels:
            continue
        part_of, column = place // panels_of_part, place % panels_of_part * PANEL
        weights = array_at(addresses[experts[used], part_of], num_columns * num_k, weight_like)
        panel, start, stride = panel_operand(weights, column, num_columns, num_k, weight_like)
        width = min(PANEL, num_columns - column)
        target = part_of * num_columns + column
        configure(shapes)
        if first_blocks[used + 1] - first_blocks[used] <= FEW_BLOCKS:
            sums = _few_blocks(
                panel, start, stride, inputs, first_blocks[used], first_blocks[used + 1]
            )
        else:
            sums = _many_blocks(
                panel, start, stride, inputs, first_blocks[used], first_blocks[used + 1]
            )
        release()
        rows = aligned_floats(2 * ROWS * PANEL)
        for row in range(starts[used], ends[used], 2 * ROWS):
            _turn(sums, (row - starts[used]) // (2 * ROWS) * _PAIR, rows)
            num_rows = min(2 * ROWS, ends[used] - row)
            add_bias(rows, num_rows, width, bias, experts[used], target)
            write_rows(rows, num_rows, width, out, row, target)


@part()
def _few_blocks(panel: Any, start: Any, stride: Any, inputs: Any, first: Any, last: Any) -> Any:
    """Return the sums of one or two blocks with a panel, which waits for the weights."""
    other = (last - 1 - first) * inputs.shape[1] * ROWS
    w, x = start, first * inputs.shape[1] * ROWS
    sums = aligned_floats(_PAIR)
    zero_00()
    zero_01()
    zero_10()
    zero_11()
    if other == 0:
        for _ in range(stride // STEP):
            load_b0(inputs, x, 64)
            load_a0(panel, w, 2 * stride)
            load_a1(panel, w + ROWS * stride, 2 * stride)
            dot_00()
            dot_10()
            w += STEP
            x += _TILE
    else:
        for _ in range(stride // STEP):
            load_b0(inputs, x, 64)
            load_a0(panel, w, 2 * stride)
            load_b1(inputs, x + other, 64)
            load_a1(panel, w + ROWS * stride, 2 * stride)
            dot_00()
            dot_01()
            dot_10()
            dot_11()
            w += STEP
            x += _TILE
    _store(sums, 0)
    return sums


@part()
def _many_blocks(panel: Any, start: Any, stride: Any, inputs: Any, first: Any, last: Any) -> Any:
    """Return the sums of blocks with a panel.

    A chunk of the panel is copied to where it stays in L1 while the blocks pass: rows of a weight
    often lie a multiple of 4 KiB apart, which leaves them one place in it. A chain that is
    interrupted goes on from its sum. An odd last block is computed twice.
    """
    num_steps, num_pairs = stride // STEP, (last - first + 1) // 2
    size = inputs.shape[1] * ROWS
    sums = aligned_floats(num_pairs * _PAIR)
    chunk = aligned_zeros(CHUNK_STEPS * PANEL * STEP, panel.dtype)
    for begin in range(0, num_steps, CHUNK_STEPS):
        steps = min(CHUNK_STEPS, num_steps - begin)
        _copy_chunk(panel, start + begin * STEP, stride, steps, chunk)
        for pair in range(num_pairs):
            x = (first + 2 * pair) * size + begin * _TILE
            y = min(first + 2 * pair + 1, last - 1) * size + begin * _TILE
            if begin == 0:
                zero_00()
                zero_01()
                zero_10()
                zero_11()
            else:
                load_00(sums, pair * _PAIR, 64)
                load_10(sums, pair * _PAIR + _TILE, 64)
                load_01(sums, pair * _PAIR + 2 * _TILE, 64)
                load_11(sums, pair * _PAIR + 3 * _TILE, 64)
            w = 0
            for _ in range(steps):
                load_b0(inputs, x, 64)
                load_a0(chunk, w, 64)
                load_b1(inputs, y, 64)
                load_a1(chunk, w + ROWS * STEP, 64)
                dot_00()
                dot_01()
                dot_10()
                dot_11()
                w += PANEL * STEP
                x += _TILE
                y += _TILE
            _store(sums, pair * _PAIR)
    return sums


@part()
def _copy_chunk(panel: Any, start: Any, stride: Any, steps: Any, chunk: Any) -> None:
    """Copy some steps of a panel, [steps, 32, 32]; tiles are quicker at it than vectors."""
    for step in range(steps):
        place = step * PANEL * STEP
        load_00(panel, start + step * STEP, 2 * stride)
        load_10(panel, start + step * STEP + ROWS * stride, 2 * stride)
        store_00(chunk, place, 64)
        store_10(chunk, place + ROWS * STEP, 64)


@part()
def _store(sums: Any, place: Any) -> None:
    """Write the tiles of sums, [2 blocks, 2 halves of a panel, 16 columns, 16 rows]."""
    store_00(sums, place, 64)
    store_10(sums, place + _TILE, 64)
    store_01(sums, place + 2 * _TILE, 64)
    store_11(sums, place + 3 * _TILE, 64)


@part()
def _turn(sums: Any, place: Any, rows: Any) -> None:
    """Turn the sums of two blocks to rows [32, 32]."""
    transpose_words(sums, place, ROWS, rows, 0, PANEL)
    transpose_words(sums, place + _TILE, ROWS, rows, ROWS, PANEL)
    transpose_words(sums, place + 2 * _TILE, ROWS, rows, ROWS * PANEL, PANEL)
    transpose_words(sums, place + 3 * _TILE, ROWS, rows, ROWS * PANEL + ROWS, PANEL)
