"""Weights out of codes and scales."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import kernel, spread


def dequantize(
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor,
    rows_per_scale: int,
    group_of: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return `(code - zero) * scale`; see the reference."""
    weights = torch.empty(codes.shape, dtype=dtype)
    spread(codes.numel())
    arrays = [as_array(each.contiguous()) for each in (codes, scales, zeros, group_of)]
    _dequantize(*arrays, rows_per_scale, as_array(weights))
    return weights


@kernel
def _dequantize(
    codes: Any, scales: Any, zeros: Any, group_of: Any, rows_per_scale: int, weights: Any
) -> None:
    for row in numba.prange(codes.shape[0]):
        of_row, out = codes[row], weights[row]
        scale, zero = scales[row // rows_per_scale], zeros[row // rows_per_scale]
        for column in range(of_row.shape[0]):
            group = group_of[column]
            code = to_float32(of_row[column]) - zero[group]
            out[column] = from_float32(np.float32(code * scale[group]), out)
