"""Weights out of codes and scales."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import kernel, part, spread

# Columns from which on a loop over a run of them takes less than one that looks at each.
_LONG_RUN = 8


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
    _dequantize(*arrays, _runs(arrays[-1]), rows_per_scale, as_array(weights))
    return weights


def _runs(group_of: Any) -> Any:
    """Return where columns of another group than the one before begin, and the end of the last."""
    changes = np.flatnonzero(np.diff(group_of)) + 1
    return np.concatenate([[0], changes, [len(group_of)]])


@kernel
def _dequantize(
    codes: Any,
    scales: Any,
    zeros: Any,
    group_of: Any,
    runs: Any,
    rows_per_scale: int,
    weights: Any,
) -> None:
    # Of a run, scale and zero point are the same, and its loop becomes vector code.
    num_runs = runs.shape[0] - 1
    has_long_runs = num_runs * _LONG_RUN <= codes.shape[1]
    for row in numba.prange(codes.shape[0]):
        scale, zero = scales[row // rows_per_scale], zeros[row // rows_per_scale]
        if has_long_runs:
            for run in range(num_runs):
                first, last = runs[run], runs[run + 1]
                _of_one_group(
                    codes[row, first:last],
                    scale[group_of[first]],
                    zero[group_of[first]],
                    weights[row, first:last],
                )
        else:
            of_row, out = codes[row], weights[row]
            for column in range(of_row.shape[0]):
                group = group_of[column]
                code = to_float32(of_row[column]) - zero[group]
                out[column] = from_float32(np.float32(code * scale[group]), out)


@part()
def _of_one_group(codes: Any, scale: Any, zero: Any, weights: Any) -> None:
    for column in range(codes.shape[0]):
        code = to_float32(codes[column]) - zero
        weights[column] = from_float32(np.float32(code * scale), weights)
