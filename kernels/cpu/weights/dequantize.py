"""Weights out of codes and scales."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import kernel, part, spread
from pagedrun.kernels.packed_weight import PackedWeight

# Columns from which on a loop over a run of them takes less than one that looks at each.
_LONG_RUN = 8


def dequantize(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Return `(code - zero) * scale - minimum`; see the reference."""
    weight = weight.with_numbers()
    weights = torch.empty(weight.codes.shape, dtype=dtype)
    scales = weight.scales.to_float32()
    zeros = torch.zeros_like(scales) if weight.zeros is None else weight.zeros.float()
    minima = torch.zeros_like(scales) if weight.minima is None else weight.minima.to_float32()
    spread(weight.codes.numel())
    given = (weight.codes, scales, zeros, minima, weight.groups())
    arrays = [as_array(each.contiguous()) for each in given]
    _dequantize(*arrays, _runs(arrays[-1]), weight.rows_per_scale, as_array(weights))
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
    minima: Any,
    group_of: Any,
    runs: Any,
    rows_per_scale: int,
    weights: Any,
) -> None:
    """A minimum is only there with codes from 0 on, whose products with scales are exact."""
    # Of a run, what codes are multiplied with is the same, and its loop becomes vector code.
    num_runs = runs.shape[0] - 1
    has_long_runs = num_runs * _LONG_RUN <= codes.shape[1]
    for row in numba.prange(codes.shape[0]):
        group_row = row // rows_per_scale
        scale, zero, minimum = scales[group_row], zeros[group_row], minima[group_row]
        if has_long_runs:
            for run in range(num_runs):
                first, last = runs[run], runs[run + 1]
                group = group_of[first]
                of_run, out = codes[row, first:last], weights[row, first:last]
                _of_one_group(of_run, scale[group], zero[group], minimum[group], out)
        else:
            of_row, out = codes[row], weights[row]
            for column in range(of_row.shape[0]):
                group = group_of[column]
                code = to_float32(of_row[column]) - zero[group]
                value = np.float32(code * scale[group]) - minimum[group]
                out[column] = from_float32(value, out)


@part()
def _of_one_group(codes: Any, scale: Any, zero: Any, minimum: Any, weights: Any) -> None:
    for column in range(codes.shape[0]):
        code = to_float32(codes[column]) - zero
        weights[column] = from_float32(np.float32(code * scale) - minimum, weights)
