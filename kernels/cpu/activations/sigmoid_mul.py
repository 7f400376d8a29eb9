"""The gate behind attention."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Return `x * sigmoid(gate)`, float32 inside, rounded once; see the reference."""
    out = torch.empty(x.shape, dtype=x.dtype)
    spread(x.numel())
    _sigmoid_mul(as_array(x.contiguous()), as_array(gate.contiguous()), as_array(out))
    return out


@kernel
def _sigmoid_mul(x: Any, gate: Any, out: Any) -> None:
    for token in numba.prange(x.shape[0]):
        _sigmoid_mul_row(x[token], gate[token], out[token])


@part()
def _sigmoid_mul_row(x: Any, gate: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(-to_float32(gate[i]) * LOG2_E))
        out[i] = from_float32(to_float32(x[i]) * sigmoid, out)
