"""Products of experts on AMX tiles: bfloat16 in and out, sums in float32.

The weight is the left operand: sixteen of its rows are a tile as they lie in a file. Each output is
one chain over k, tile by tile in ascending order; see `pagedrun.kernels.cpu.linears.tile_linear`.
"""

from typing import Any

import numba

from pagedrun.kernels.cpu.experts.expert_blocks import ROWS, STEP
from pagedrun.kernels.cpu.experts.panels import PANEL, panel_operand, write_rows
from pagedrun.kernels.cpu.jit import kernel, part
from pagedrun.kernels.cpu.simd.aligned import aligned_floats
from pagedrun.kernels.cpu.simd.amx import (
    configure,
    dot_00,
    dot_01,
    dot_10,
    dot_11,
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

_TILE = ROWS * ROWS  # words of inputs, or sums


@kernel
def multiply_tiles(
    addresses: Any,
    weight_like: Any,
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
    for task in numba.prange(addresses.shape[1] * panels_of_part * experts.shape[0]):
        used = task % experts.shape[0]
        part_of = task // experts.shape[0] // panels_of_part
        column = task // experts.shape[0] % panels_of_part * PANEL
        weights = array_at(addresses[experts[used], part_of], num_columns * num_k, weight_like)
        panel, start, stride = panel_operand(weights, column, num_columns, num_k, weight_like)
        width = min(PANEL, num_columns - column)
        target = part_of * num_columns + column
        configure(shapes)
        for block in range(first_blocks[used], first_blocks[used + 1], 2):
            row = starts[used] + (block - first_blocks[used]) * ROWS
            if block + 1 < first_blocks[used + 1]:
                rows = _two_blocks(panel, start, stride, inputs, block)
            else:
                rows = _one_block(panel, start, stride, inputs, block)
            write_rows(rows, min(2 * ROWS, ends[used] - row), width, out, row, target)
        release()


@part()
def _one_block(panel: Any, start: Any, stride: Any, inputs: Any, block: Any) -> Any:
    """Return the products of a block with a panel, [16, 32] float32."""
    w, x = start, block * inputs.shape[1] * ROWS
    zero_00()
    zero_10()
    for _ in range(stride // STEP):
        load_b0(inputs, x, 64)
        load_a0(panel, w, 2 * stride)
        load_a1(panel, w + ROWS * stride, 2 * stride)
        dot_00()
        dot_10()
        w += STEP
        x += _TILE
    sums, rows = aligned_floats(2 * _TILE), aligned_floats(ROWS * PANEL)
    store_00(sums, 0, 64)
    store_10(sums, _TILE, 64)
    transpose_words(sums, 0, ROWS, rows, 0, PANEL)
    transpose_words(sums, _TILE, ROWS, rows, ROWS, PANEL)
    return rows


@part()
def _two_blocks(panel: Any, start: Any, stride: Any, inputs: Any, block: Any) -> Any:
    """Return the products of a block and the next with a panel, [32, 32] float32."""
    other = inputs.shape[1] * ROWS
    w, x = start, block * other
    zero_00()
    zero_01()
    zero_10()
    zero_11()
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
    sums, rows = aligned_floats(4 * _TILE), aligned_floats(2 * ROWS * PANEL)
    store_00(sums, 0, 64)
    store_10(sums, _TILE, 64)
    store_01(sums, 2 * _TILE, 64)
    store_11(sums, 3 * _TILE, 64)
    transpose_words(sums, 0, ROWS, rows, 0, PANEL)
    transpose_words(sums, _TILE, ROWS, rows, ROWS, PANEL)
    transpose_words(sums, 2 * _TILE, ROWS, rows, ROWS * PANEL, PANEL)
    transpose_words(sums, 3 * _TILE, ROWS, rows, ROWS * PANEL + ROWS, PANEL)
    return rows
