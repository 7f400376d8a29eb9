"""Products of experts for any processor: each output is one chain over k in ascending order."""

from typing import Any

import numba
import numpy as np

from pagedrun.kernels.cpu.experts.expert_blocks import ROWS
from pagedrun.kernels.cpu.experts.panels import PANEL, add_bias, panel_operand, write_rows
from pagedrun.kernels.cpu.jit import kernel, part
from pagedrun.kernels.cpu.simd import block_product
from pagedrun.kernels.cpu.simd.aligned import aligned_floats
from pagedrun.kernels.cpu.simd.memory import array_at
from pagedrun.kernels.cpu.simd.words import transpose_words

_COLUMNS = 2 * block_product.ROWS  # a block's columns are the rows of A
_multiply_block = block_product.block_product(_COLUMNS, 1)


@kernel
def multiply_chains(
    num_shares: Any,
    addresses: Any,
    weight_like: Any,
    bias: Any,
    operand_like: Any,
    num_columns: Any,
    num_k: Any,
    experts: Any,
    starts: Any,
    ends: Any,
    first_blocks: Any,
    inputs: Any,
    out: Any,
) -> None:
    """Multiply blocks of inputs with the weights of their experts; see `ExpertBlocks`.

    addresses: [num_experts, num_parts] int64, of weights [num_columns, num_k] of the dtype of
    `weight_like`. They are multiplied as `operand_like`: float32 with inputs of float32, or pairs
    of bfloat16 with words. The columns of a part follow those of the one before in `out`. bias:
    [num_experts, all columns] of the dtype of weights, without experts for none. Columns are cut
    into `num_shares`, one for each thread, in which experts follow one another: so threads are
    alike however rows are spread over experts, and an expert's inputs stay in the cache.
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
        panel, start, stride = panel_operand(weights, column, num_columns, num_k, operand_like)
        width = min(PANEL, num_columns - column)
        target = part_of * num_columns + column
        for block in range(first_blocks[used], first_blocks[used + 1]):
            rows = _block_rows(panel, start, stride, inputs, block)
            row = starts[used] + (block - first_blocks[used]) * ROWS
            num_rows = min(ROWS, ends[used] - row)
            add_bias(rows, num_rows, width, bias, experts[used], target)
            write_rows(rows, num_rows, width, out, row, target)


@part()
def _block_rows(panel: Any, start: Any, stride: Any, inputs: Any, block: Any) -> Any:
    """Return the products of a block with a panel, [16, 32] float32."""
    num_k = inputs.shape[1]  # terms or pairs of them
    terms = stride // num_k
    sums, rows = aligned_floats(PANEL * ROWS), aligned_floats(ROWS * PANEL)
    sums[:] = np.float32(0.0)
    for column in range(0, PANEL, _COLUMNS):
        _multiply_block(
            panel,
            start + column * stride,
            stride,
            terms,
            inputs,
            block * num_k * ROWS,
            ROWS,
            num_k,
            sums,
            column * ROWS,
            ROWS,
        )
    transpose_words(sums, 0, ROWS, rows, 0, PANEL)
    transpose_words(sums, ROWS * ROWS, ROWS, rows, ROWS, PANEL)
    return rows
