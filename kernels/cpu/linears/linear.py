"""Linear layers on the fastest row-invariant products of a kernel set.

In bfloat16 these are AMX tiles, or with AVX512-BF16 oneDNN where it is row-invariant. Otherwise
`FmaLinear` multiplies in float32, with weights that stay in their dtype in memory.
"""

from collections.abc import Callable
from typing import Any

import numba
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import choose_threads, kernel, num_threads
from pagedrun.kernels.cpu.linears import onednn_linear
from pagedrun.kernels.cpu.linears.amx_linear import AmxLinear
from pagedrun.kernels.cpu.linears.epilogue import COLUMNS, padded_bias
from pagedrun.kernels.cpu.linears.onednn_linear import OneDnnLinear, RowHeights
from pagedrun.kernels.cpu.linears.panel_product import (
    all_rows,
    multiply_panels,
    multiply_row_tiles,
    rows_of_tile,
)
from pagedrun.kernels.cpu.simd.arrays import aligned_empty
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
    if weight.dtype is torch.bfloat16 and kernel_set is KernelSet.AMX:
        return AmxLinear(weight, bias)
    if (
        weight.dtype is torch.bfloat16
        and kernel_set is KernelSet.AVX512_BF16
        and onednn_linear.can_pack()
    ):
        heights = RowHeights.of(onednn_linear.multiply, onednn_linear.pack, weight.shape)
        if heights.cuts:
            return OneDnnLinear(weight, bias, heights)
    return FmaLinear(weight, bias)


class FmaLinear:
    """`y = x @ weight.T + bias` for float32 or bfloat16, multiplied in float32.

    weight: [out_features, in_features], not kept. bias: [out_features], same dtype, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, in_features = weight.shape
        source = as_array(weight.contiguous())
        num_panels = -(-self.out_features // COLUMNS)
        self._weights = aligned_empty((num_panels, in_features, COLUMNS), source.dtype)
        choose_threads(self._weights.size)
        pack_panels(source, self._weights)
        self._bias = padded_bias(bias, num_panels * COLUMNS)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] to [num_rows, out_features], in the same dtype."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        choose_threads(self._weights.size)
        threads, rows = num_threads(), as_array(x.contiguous())
        tile = rows_of_tile(len(x), threads)
        if tile:
            multiply_row_tiles(tile, rows, self._weights, self._bias, as_array(out))
        else:
            every = all_rows(len(x))
            multiply_panels(threads, rows, every, self._weights, self._bias, as_array(out))
        return out


@kernel
def pack_panels(weight: Any, packed: Any) -> None:
    """Copy weights [columns, k] to panels of columns; zeros follow the last column."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = 0
        for column in range(min(COLUMNS, weight.shape[0] - panel * COLUMNS)):
            source = weight[panel * COLUMNS + column]
            for k in range(source.shape[0]):
                packed[panel, k, column] = source[k]
