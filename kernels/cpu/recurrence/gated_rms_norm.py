"""Root-mean-square normalisation of heads, each then multiplied by its gate."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread
from pagedrun.kernels.cpu.rms_norm import inverse_rms


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return each head of x, normalised, weighted and gated; see the reference."""
    out = torch.empty(x.shape, dtype=x.dtype)
    size = len(weight)
    spread(x.numel())
    _gated_rms_norm(
        as_array(x.contiguous().view(-1, size)),
        as_array(gate.contiguous().view(-1, size)),
        as_array(weight),
        np.float32(eps),
        as_array(out.view(-1, size)),
    )
    return out


@kernel
def _gated_rms_norm(x: Any, gate: Any, weight: Any, eps: Any, out: Any) -> None:
    for head in numba.prange(x.shape[0]):
        _gated_head(x[head], gate[head], weight, eps, out[head])


@part()
def _gated_head(x: Any, gates: Any, weight: Any, eps: Any, out: Any) -> None:
    factor = inverse_rms(x, eps)
    for i in range(out.shape[0]):
        gate = to_float32(gates[i])
        sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(-gate * LOG2_E))
        normalized = to_float32(x[i]) * factor * to_float32(weight[i])
        out[i] = from_float32(normalized * gate * sigmoid, out)
