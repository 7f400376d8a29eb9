"""A linear layer whose weights and inputs are int8."""

import torch
from torch import Tensor

from pagedrun.kernels.reference.linears.quantize_rows import quantize_rows

# Products of codes are at most 2^14, so the sum of as many fits 32 bits.
MAX_IN_FEATURES = 2**16


class Int8Linear:
    """`y = x @ (codes * scales).T + bias`, each row x being quantised as `quantize_rows` does.

    codes: [out_features, in_features] int8, with at most `MAX_IN_FEATURES` columns. scales:
    [out_features] float32. bias: [out_features] in the dtype of x, or None.

    Sums of products of codes are integers, exact in any order: so a row has the same bytes whatever
    the number of rows, on any device. The rest is float32: the sum, rounded once; times the row's
    scale times the column's; plus the bias; rounded to the dtype of x. Raises `ValueError` for too
    many columns.
    """

    is_packed = False
    row_invariant = True

    def __init__(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = codes.shape
        check_in_features(self.in_features)
        self.num_bytes = int8_bytes(codes, scales, bias)
        self._codes = codes
        self._scales = scales
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        codes, scales = quantize_rows(x)
        sums = codes.double() @ self._codes.double().T  # exact: integers below 2^53
        return with_scales(sums, scales, self._scales, self._bias, x.dtype)


def check_in_features(in_features: int) -> None:
    """Raise `ValueError` where sums might not fit 32 bits."""
    if in_features > MAX_IN_FEATURES:
        raise ValueError(
            f"int8 products have at most {MAX_IN_FEATURES} terms, and these have {in_features}"
        )


def int8_bytes(codes: Tensor, scales: Tensor, bias: Tensor | None) -> int:
    """Return the bytes of codes, scales and bias."""
    return codes.nbytes + scales.nbytes + (0 if bias is None else bias.nbytes)


def with_scales(
    sums: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return what a layer makes of sums [num_rows, out_features] of products of codes."""
    y = sums.float() * (row_scales[:, None] * scales)
    return (y if bias is None else y + bias.float()).to(dtype)
