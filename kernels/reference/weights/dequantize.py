"""Weights out of codes and scales."""

import torch
from torch import Tensor

from pagedrun.kernels.packed_weight import PackedWeight


def dequantize(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Return `(code - zero) * scale - minimum`, computed in float32 and rounded once.

    Returns [out_features, in_features] in `dtype`.
    """
    whole, groups = weight.with_numbers().by_row(), weight.groups()
    numbers = whole.codes.float()
    if whole.zeros is not None:
        numbers -= whole.zeros.float()[:, groups]
    numbers *= whole.scales.to_float32()[:, groups]
    if whole.minima is not None:
        numbers -= whole.minima.to_float32()[:, groups]
    return numbers.to(dtype)
