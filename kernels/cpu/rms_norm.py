"""Root-mean-square normalisation."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import REORDERED, kernel, part, spread


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Normalise each row of `x`, float32 inside, rounded once; see the reference."""
    out = torch.empty(x.shape, dtype=dtype or weight.dtype)
    spread(x.numel())
    _rms_norm(as_array(x.contiguous()), as_array(weight), np.float32(eps), as_array(out))
    return out


@kernel
def _rms_norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    for token in numba.prange(x.shape[0]):
        normalize(x[token], weight, eps, out[token])


@part()
def normalize(x: Any, weight: Any, eps: Any, out: Any) -> None:
    """Write one normalised row: all three arrays [hidden_size]."""
    factor = inverse_rms(x, eps)
    for i in range(x.shape[0]):
        out[i] = from_float32(to_float32(x[i]) * factor * to_float32(weight[i]), out)


@part(fastmath=REORDERED)
def inverse_rms(x: Any, eps: Any) -> Any:
    """Return `1 / sqrt(mean(x²) + eps)` of one row as float32."""
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        value = to_float32(x[i])
        total += value * value
    return np.float32(1.0) / np.sqrt(total / np.float32(x.shape[0]) + eps)
