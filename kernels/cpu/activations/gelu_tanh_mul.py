"""The gated activation of a Gemma feed-forward layer."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread

# gelu(x) is x times the sigmoid of 2 sqrt(2 / pi) (x + 0.044715 x³), since a sigmoid is half of
# one more than the tanh of half of its argument.
_LINEAR = np.float32(-1.5957691216057308) * LOG2_E
_CUBIC = np.float32(0.044715)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, float32 inside, rounded once; see the reference."""
    num_tokens, width = gate_up.shape
    out = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype)
    spread(gate_up.numel())
    _gelu_tanh_mul(as_array(gate_up.contiguous()), as_array(out))
    return out


@kernel
def _gelu_tanh_mul(gate_up: Any, out: Any) -> None:
    width = out.shape[1]
    for token in numba.prange(out.shape[0]):
        _gelu_tanh_mul_row(gate_up[token, :width], gate_up[token, width:], out[token])


@part()
def _gelu_tanh_mul_row(gates: Any, ups: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        gate = to_float32(gates[i])
        power = _LINEAR * (gate + _CUBIC * gate * gate * gate)
        sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(power))
        out[i] = from_float32(gate * sigmoid * to_float32(ups[i]), out)
