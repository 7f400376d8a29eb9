"""A linear layer whose weights and inputs are int8, by the vendor's product."""

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.reference.linears.int8_linear import (
    check_in_features,
    int8_bytes,
    with_scales,
)
from pagedrun.kernels.reference.linears.quantize_rows import quantize_rows

# What `torch._int_mm` takes on NVIDIA's chips: more rows than 16, and sizes in eights.
_MIN_ROWS = 32
_SIZES = 8


class Int8Linear:
    """`y = x @ (codes * scales).T + bias`, the rows of x quantised; see the reference.

    Integer sums are exact, so the vendor's choice of a kernel changes no byte.
    """

    is_packed = True
    row_invariant = True

    def __init__(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = codes.shape
        check_in_features(self.in_features)
        self.num_bytes = int8_bytes(codes, scales, bias)
        self._codes = functional.pad(codes, (0, -codes.shape[1] % _SIZES, 0, -len(codes) % _SIZES))
        self._scales = scales
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        codes, scales = quantize_rows(x)
        padding = (0, self._codes.shape[1] - self.in_features, 0, max(0, _MIN_ROWS - len(x)))
        sums = _multiply(functional.pad(codes, padding), self._codes.T)
        sums = sums[: len(x), : self.out_features]
        return with_scales(sums, scales, self._scales, self._bias, x.dtype)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of int8 matrices in int32."""
    if a.is_cpu:  # interpreted: processors without VNNI saturate the sums of pairs
        return (a.double() @ b.double()).int()
    return torch._int_mm(a, b)
