"""Residual addition and the normalisation that follows it, in one pass over the row."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.jit import kernel, spread
from pagedrun.kernels.cpu.rms_norm import normalize


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to the float32 `residual` in place and normalise the sum; see the reference."""
    assert residual.is_contiguous(), "the residual is updated in place"
    out = torch.empty(x.shape, dtype=x.dtype)
    spread(x.numel())
    _add_rms_norm(
        as_array(x.contiguous()),
        as_array(residual),
        as_array(weight),
        np.float32(eps),
        as_array(out),
    )
    return out


@kernel
def _add_rms_norm(x: Any, residual: Any, weight: Any, eps: Any, out: Any) -> None:
    for token in numba.prange(x.shape[0]):
        for i in range(x.shape[1]):
            residual[token, i] += to_float32(x[token, i])
        normalize(residual[token], weight, eps, out[token])
