"""Panels: 32 outputs of one expert's weight, read where they lie; and what becomes of their sums.

A weight is a row-major matrix [num_columns, num_k], of which a kernel knows the address. It is
never copied as a whole, so one that is mapped from a file stays there, and one that no row asks for
is not read at all.
"""

from typing import Any

from numba.extending import overload

from pagedrun.kernels.cpu.bfloat16 import from_float32, to_float32
from pagedrun.kernels.cpu.experts.expert_blocks import ROWS, STEP
from pagedrun.kernels.cpu.jit import part
from pagedrun.kernels.cpu.simd.aligned import aligned_zeros
from pagedrun.kernels.cpu.simd.lanes import load
from pagedrun.kernels.cpu.simd.words import write_lanes

PANEL = 32


def panel_operand(weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any) -> Any:
    """Inside kernels: return (array, start, stride) of rows `column` .. `column + 31` of a weight.

    The array has the dtype of `like`: the weight itself where that is the same and the panel whole,
    else a copy with zeros beyond the last column and up to a multiple of 32 of k.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(panel_operand, strict=False)
def _overload_panel_operand(
    weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any
) -> Any:
    if weights.dtype != like.dtype:
        return lambda weights, column, num_columns, num_k, like: _copied(
            weights, column, num_columns, num_k, like
        )

    def in_place(weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any) -> Any:
        if num_k % STEP == 0 and column + PANEL <= num_columns:
            return weights, column * num_k, num_k
        return _copied(weights, column, num_columns, num_k, like)

    return in_place


@part()
def _copied(weights: Any, column: Any, num_columns: Any, num_k: Any, like: Any) -> Any:
    stride = (num_k + STEP - 1) // STEP * STEP
    panel = aligned_zeros(PANEL * stride, like.dtype)
    for i in range(min(PANEL, num_columns - column)):
        source = weights[(column + i) * num_k : (column + i + 1) * num_k]
        target = panel[i * stride : i * stride + num_k]
        for k in range(num_k):
            target[k] = from_float32(to_float32(source[k]), like)
    return panel, 0, stride


@part()
def add_bias(
    rows: Any, num_rows: Any, num_columns: Any, bias: Any, expert: Any, column: Any
) -> None:
    """Add an expert's bias from `column` on to the first rows [at least num_rows, 32] float32."""
    if bias.shape[0] == 0:
        return
    own = bias[expert, column : column + num_columns]
    for i in range(num_rows):
        row = rows[i * PANEL : i * PANEL + num_columns]
        for j in range(num_columns):
            row[j] += to_float32(own[j])


@part()
def write_rows(rows: Any, num_rows: Any, num_columns: Any, out: Any, row: Any, column: Any) -> None:
    """Write the first columns of rows [at least num_rows, 32] float32 to `out`, rounded."""
    for i in range(num_rows):
        source = i * PANEL
        if num_columns == PANEL:
            target = (row + i) * out.shape[1] + column
            write_lanes(out, target, load(rows, source))
            write_lanes(out, target + ROWS, load(rows, source + ROWS))
        else:
            for j in range(num_columns):
                out[row + i, column + j] = from_float32(rows[source + j], out)
