"""Products with weights of few bits, step after step, and where their outputs go."""

from typing import Any

import triton
import triton.language as tl

from pagedrun.kernels.gpu.matrix_product import multiply
from pagedrun.kernels.gpu.packed.unpack_tile import rounded, unpack_tile


@triton.jit
def multiply_steps(
    x_rows,
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    x,
    columns,
    first,
    end,
    out_features,
    in_features,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    STEP: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
) -> Any:
    """Return the products of the steps first .. end - 1 in ascending order, [COLUMNS, ROWS].

    The weights are the left operand: those are multiplied out of registers. x_rows: [ROWS, 1],
    where the rows of `x` begin. columns: [COLUMNS] outputs, all below out_features.
    """
    inputs = tl.arange(0, STEP)
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for step in range(first, end):
        at = (step * STEP + inputs)[None, :]
        if EVEN:
            right = tl.load(x_rows + at)
        else:
            right = tl.load(x_rows + at, mask=at < in_features, other=0.0)
        left = unpack_tile(
            *(words, above, scales, factors, zeros, minima, minimum_factors),
            *(x, step, columns, out_features, num_groups),
            *(KIND, OFFSET, GROUP, SPAN, STEP, NEIGHBOURS, COLUMNS),
        )
        total = multiply(left, right.T, total)
    return total


@triton.jit
def store_outputs(out, total, rows, end, columns, out_features):
    """Store those of `total` [COLUMNS, ROWS] whose rows are below `end`, rounded to `out`."""
    target = out + rows.to(tl.int64)[None, :] * out_features + columns[:, None]
    mask = (columns < out_features)[:, None] & (rows < end)[None, :]
    tl.store(target, rounded(total, out), mask=mask)
