"""Linear layers through oneDNN, their weights packed once into its blocked layout."""

import torch
from torch import Tensor
from torch.nn import functional

# The packed layout hardly depends on the number of rows it is announced. Measured on a Zen 5 with
# AVX512-BF16, weights 1024 x 1024 and 6144 x 1024: hints 1, 8, 64 and 256 agree within noise for
# bfloat16 at 1, 4, 16, 64 and 256 rows; for float32 hint 1 costs up to 3 times at 4 rows.
PACKED_FOR_ROWS = 64

# oneDNN takes another kernel, with another order of summation, where there are few rows: seen at
# 1 row of bfloat16 (weights 1024 x 2048, 1024 x 3072, 12288 x 4096; not 6144 x 1024), at 1 of
# packed float32 and at up to 11 of plain float32. So fewer are never asked for.
MIN_ROWS = {torch.bfloat16: 4, torch.float32: 16}


class PackedLinear:
    """`y = x @ weight.T + bias`, each row the same whatever the number of rows.

    weight: [out_features, in_features] float32 or bfloat16. bias: [out_features], same dtype, or
    None. Where oneDNN is there, `is_packed` is true and the weight that was given is not kept.
    `row_invariant` asks for what holds here anyway.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, row_invariant: bool = False
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.is_packed = _can_pack(weight)
        self._bias = bias
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)
            if self.is_packed
            else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        num_rows = len(x)
        missing = MIN_ROWS.get(x.dtype, 0) - num_rows
        if missing > 0:
            x = functional.pad(x, (0, 0, 0, missing))
        return self._multiply(x)[:num_rows]

    def _multiply(self, x: Tensor) -> Tensor:
        if not self.is_packed:
            return functional.linear(x, self._weight, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return product


def _can_pack(weight: Tensor) -> bool:
    if weight.dtype is torch.bfloat16:
        supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    else:
        supported = weight.dtype is torch.float32
    has_mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_mkldnn and weight.device.type == "cpu" and supported)
