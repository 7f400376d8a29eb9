"""Weights out of bytes of two codes each, whose numbers are in a table."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32
from pagedrun.kernels.cpu.jit import kernel, spread


def unpack_pairs(pairs: Tensor, table: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `table[code] * scale`; see the reference."""
    weights = torch.empty(len(pairs), 2 * pairs.shape[1], dtype=dtype)
    spread(weights.numel())
    arrays = [as_array(each.contiguous()) for each in (pairs, table, scales)]
    _unpack_pairs(*arrays, as_array(weights))
    return weights


@kernel
def _unpack_pairs(pairs: Any, table: Any, scales: Any, weights: Any) -> None:
    num_bytes = pairs.shape[1] // scales.shape[1]  # of a group
    for row in numba.prange(pairs.shape[0]):
        for group in range(scales.shape[1]):
            scale, first = scales[row, group], group * num_bytes
            packed = pairs[row, first : first + num_bytes]
            out = weights[row, 2 * first : 2 * (first + num_bytes)]
            for i in range(num_bytes):
                out[2 * i] = from_float32(np.float32(table[packed[i] & 15] * scale), out)
                out[2 * i + 1] = from_float32(np.float32(table[packed[i] >> 4] * scale), out)
