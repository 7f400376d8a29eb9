"""Linear layers on the fastest row-invariant products of a kernel set.

On AMX `amx_linear`, else oneDNN where it is row-invariant, else `FmaLinear`: each output is one
chain of sums over k in float32. Up to `ROWS` rows it is bound by reading weights; above, a panel of
32 columns stays in L2 for all rows.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.jit import choose_threads, kernel
from pagedrun.kernels.cpu.linears import onednn_linear
from pagedrun.kernels.cpu.linears.amx_linear import AmxLinear
from pagedrun.kernels.cpu.linears.epilogue import padded_bias, write_block
from pagedrun.kernels.cpu.linears.onednn_linear import OneDnnLinear, RowHeights
from pagedrun.kernels.cpu.simd.arrays import aligned_empty, aligned_floats
from pagedrun.kernels.cpu.simd.block_product import ROWS, block_product
from pagedrun.kernels.kernel_set import KernelSet


class PackedLinear:
    """Row-invariant `y = x @ weight.T + bias`.

    weight: [out_features, in_features] float32 or bfloat16; it is packed, and not kept. bias:
    [out_features], same dtype, or None. Products are those of `kernel_set`, None for the
    processor's best.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, kernel_set: KernelSet | None = None
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._multiply = _packed(weight, bias, KernelSet.usable(kernel_set))

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        return self._multiply(x)


def _packed(
    weight: Tensor, bias: Tensor | None, kernel_set: KernelSet
) -> Callable[[Tensor], Tensor]:
    if kernel_set is KernelSet.AMX and weight.dtype is torch.bfloat16:
        return AmxLinear(weight, bias)
    if onednn_linear.can_pack(weight.dtype):
        heights = RowHeights.of(
            onednn_linear.multiply, onednn_linear.pack, weight.shape, weight.dtype
        )
        if heights.cuts:
            return OneDnnLinear(weight, bias, heights)
    return FmaLinear(weight, bias)


PANEL_COLUMNS = 32
_multiply_block = block_product(ROWS, 2)


class FmaLinear:
    """`y = x @ weight.T + bias` for float32 or bfloat16, multiplied in float32.

    weight: [out_features, in_features], not kept. bias: [out_features], same dtype, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, in_features = weight.shape
        source = as_array(weight.contiguous())
        num_panels = -(-self.out_features // PANEL_COLUMNS)
        self._weights = aligned_empty((num_panels, in_features, PANEL_COLUMNS), source.dtype)
        pack_panels(source, self._weights)
        self._bias = padded_bias(bias, num_panels * PANEL_COLUMNS)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] to [num_rows, out_features], in the same dtype."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        rows = np.zeros((-(-len(x) // ROWS) * ROWS, x.shape[1]), np.float32)
        choose_threads(self._weights.size)
        _multiply(as_array(x.contiguous()), rows, self._weights, self._bias, as_array(out))
        return out


@kernel
def pack_panels(weight: Any, packed: Any) -> None:
    """Copy weights [columns, k] to panels of columns; zeros follow the last column."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = 0
        for column in range(min(PANEL_COLUMNS, weight.shape[0] - panel * PANEL_COLUMNS)):
            source = weight[panel * PANEL_COLUMNS + column]
            for k in range(source.shape[0]):
                packed[panel, k, column] = source[k]


@kernel
def _multiply(x: Any, rows: Any, weights: Any, bias: Any, out: Any) -> None:
    """Multiply x. rows: memory for x in float32, zero-padded to a multiple of `ROWS` rows."""
    num_panels, num_k = weights.shape[:2]
    for row in numba.prange(x.shape[0]):
        source, target = x[row], rows[row]
        for k in range(num_k):
            target[k] = to_float32(source[k])
    for panel in numba.prange(num_panels):
        sums = aligned_floats(ROWS * PANEL_COLUMNS)
        for row in range(0, rows.shape[0], ROWS):
            sums[:] = np.float32(0.0)
            start = panel * num_k * PANEL_COLUMNS
            _multiply_block(
                rows,
                row * num_k,
                num_k,
                1,
                weights,
                start,
                PANEL_COLUMNS,
                num_k,
                sums,
                0,
                PANEL_COLUMNS,
            )
            write_block(sums, 0, ROWS, bias, row, panel * PANEL_COLUMNS, out)
