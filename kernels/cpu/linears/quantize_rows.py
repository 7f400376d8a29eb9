"""Rows of numbers as int8, in the order in which products read them."""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.jit import EXACT, kernel, part, spread
from pagedrun.kernels.cpu.simd.aligned import aligned_empty
from pagedrun.kernels.cpu.simd.lanes import splat
from pagedrun.kernels.cpu.simd.words import read_lanes, store_codes
from pagedrun.kernels.reference.linears.quantize_rows import LARGEST_CODE, SMALLEST

STEP = 64  # codes of a row that lie together
_SMALLEST = np.float32(SMALLEST)
_LARGEST_CODE = np.float32(LARGEST_CODE)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and a scale for each row; see the reference."""
    codes, scales = quantized_panels(x, 1)
    rows = torch.from_numpy(codes.reshape(len(x), codes.shape[1] * STEP))
    return rows[:, : x.shape[1]].contiguous(), torch.from_numpy(scales)


def quantized_panels(x: Tensor, panel_rows: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return codes [num_rows / panel_rows, num_columns / STEP, panel_rows, STEP], and scales.

    Zeros follow the end of a row; rows beyond the last hold anything.
    """
    num_rows, num_columns = x.shape
    shape = (-(-num_rows // panel_rows), -(-num_columns // STEP), panel_rows, STEP)
    codes, scales = aligned_empty(shape, np.int8), np.empty(num_rows, np.float32)
    spread(x.numel())
    _quantize(as_array(x.contiguous()), codes, scales)
    return codes, scales


@kernel
def _quantize(x: Any, codes: Any, scales: Any) -> None:
    num_steps, panel_rows = codes.shape[1:3]
    for row in numba.prange(x.shape[0]):
        first = row // panel_rows * num_steps * panel_rows + row % panel_rows
        scales[row] = _quantize_row(x, row, codes, first * STEP, panel_rows * STEP)


@part()
def _quantize_row(x: Any, row: Any, codes: Any, target: Any, stride: Any) -> Any:
    """Write a row's codes, each step `stride` behind the one before; return its scale."""
    num_columns, rest = x.shape[1], x.shape[1] % STEP
    largest = _largest_magnitude(x[row])
    is_finite = largest < np.float32(np.inf)
    largest = max(largest, _SMALLEST) if is_finite else np.float32(np.nan)
    inverse = _LARGEST_CODE / largest if is_finite else np.float32(0.0)
    for step in range(num_columns // STEP):
        _write_step(x, row * num_columns + step * STEP, inverse, codes, target)
        target += stride
    if rest > 0:
        last = np.zeros(STEP, np.float32)
        for k in range(rest):
            last[k] = to_float32(x[row, num_columns - rest + k])
        _write_step(last, 0, inverse, codes, target)
    return largest / _LARGEST_CODE


@part()
def _largest_magnitude(row: Any) -> Any:
    """Return the largest magnitude of a row's numbers, NaN if one is NaN.

    As integers the bits of magnitudes are in order, infinity and NaN last.
    """
    largest = np.uint32(0)
    for k in range(row.shape[0]):
        bits = np.float32(to_float32(row[k])).view(np.uint32)
        largest = max(largest, np.uint32(bits & np.uint32(0x7FFFFFFF)))
    found = np.uint32(largest)
    return found.view(np.float32)


@part(fastmath=EXACT)
def _write_step(x: Any, place: Any, inverse: Any, codes: Any, target: Any) -> None:
    for k in range(0, STEP, 16):
        store_codes(codes, target + k, read_lanes(x, place + k) * splat(inverse))
