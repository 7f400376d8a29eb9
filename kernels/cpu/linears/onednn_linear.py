"""A linear layer through oneDNN, its weights packed once into its blocked layout."""

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.cpu.linears.row_heights import MIN_ROWS, RowHeights

# The packed layout hardly depends on the number of rows it is announced. Measured on a Zen 5 with
# AVX512-BF16, weights 1024 x 1024 and 6144 x 1024: hints 1, 8, 64 and 256 agree within noise for
# bfloat16 at 1, 4, 16, 64 and 256 rows; for float32 hint 1 costs up to 3 times at 4 rows.
PACKED_FOR_ROWS = 64


class OneDnnLinear:
    """`y = x @ weight.T + bias`, in products of those heights at which a row keeps its bits.

    weight: [out_features, in_features] float32 or bfloat16, not kept. bias: [out_features], same
    dtype, or None. heights: what was found for this shape; it has at least one cut.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, heights: RowHeights) -> None:
        self._packed = pack(weight)
        self._bias = bias
        self._heights = heights
        self._min_rows = MIN_ROWS[weight.dtype]

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] to [num_rows, out_features], in the same dtype."""
        products, start = [], 0
        for num_rows, height in self._heights.pieces(len(x), self._min_rows):
            rows = x[start : start + num_rows]
            if height > num_rows:
                rows = functional.pad(rows, (0, 0, 0, height - num_rows))
            products.append(multiply(rows, self._packed, self._bias)[:num_rows])
            start += num_rows
        return products[0] if len(products) == 1 else torch.cat(products)


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether oneDNN is there and packs weights of a dtype on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out_features, in_features] in oneDNN's layout."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)
    return packed


def multiply(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias` for a packed weight."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
