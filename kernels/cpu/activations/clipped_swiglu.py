"""The gated activation of gpt-oss's experts."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread


def clipped_swiglu(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """Return `(up + 1) * gate * sigmoid(alpha * gate)`, float32 inside; see the reference."""
    num_tokens, width = gate_up.shape
    out = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype)
    spread(gate_up.numel())
    _clipped_swiglu(
        as_array(gate_up.contiguous()),
        np.float32(limit),
        np.float32(-alpha) * LOG2_E,
        as_array(out),
    )
    return out


@kernel
def _clipped_swiglu(gate_up: Any, limit: Any, factor: Any, out: Any) -> None:
    width = out.shape[1]
    for token in numba.prange(out.shape[0]):
        _clipped_swiglu_row(
            gate_up[token, :width], gate_up[token, width:], limit, factor, out[token]
        )


@part()
def _clipped_swiglu_row(gates: Any, ups: Any, limit: Any, factor: Any, out: Any) -> None:
    one = np.float32(1.0)
    for i in range(out.shape[0]):
        gate, up = to_float32(gates[i]), to_float32(ups[i])
        # Written so that a NaN, which no comparison holds for, stays.
        gate = limit if gate > limit else gate
        up = limit if up > limit else up
        up = -limit if up < -limit else up
        sigmoid = one / (one + exp2(gate * factor))
        out[i] = from_float32((up + one) * gate * sigmoid, out)
