"""Activation functions of feed-forward layers and the gate of attention; a task is a token."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import choose_threads, inlined, kernel
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, exp2


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, float32 inside, rounded once; see the reference."""
    num_tokens, width = gate_up.shape
    out = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype)
    choose_threads(gate_up.numel())
    _silu_mul(as_array(gate_up.contiguous()), as_array(out))
    return out


@kernel
def _silu_mul(gate_up: Any, out: Any) -> None:
    width = out.shape[1]
    for token in numba.prange(out.shape[0]):
        _silu_mul_row(gate_up[token, :width], gate_up[token, width:], out[token])


@inlined()
def _silu_mul_row(gates: Any, ups: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        gate = to_float32(gates[i])
        sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(-gate * LOG2_E))
        out[i] = from_float32(gate * sigmoid * to_float32(ups[i]), out)


# gelu(x) is x times the sigmoid of 2 sqrt(2 / pi) (x + 0.044715 x³), since a sigmoid is half of
# one more than the tanh of half of its argument.
_LINEAR = np.float32(-1.5957691216057308) * LOG2_E
_CUBIC = np.float32(0.044715)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, float32 inside, rounded once; see the reference."""
    num_tokens, width = gate_up.shape
    out = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype)
    choose_threads(gate_up.numel())
    _gelu_tanh_mul(as_array(gate_up.contiguous()), as_array(out))
    return out


@kernel
def _gelu_tanh_mul(gate_up: Any, out: Any) -> None:
    width = out.shape[1]
    for token in numba.prange(out.shape[0]):
        _gelu_tanh_mul_row(gate_up[token, :width], gate_up[token, width:], out[token])


@inlined()
def _gelu_tanh_mul_row(gates: Any, ups: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        gate = to_float32(gates[i])
        power = _LINEAR * (gate + _CUBIC * gate * gate * gate)
        sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(power))
        out[i] = from_float32(gate * sigmoid * to_float32(ups[i]), out)


def clipped_swiglu(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """Return `(up + 1) * gate * sigmoid(alpha * gate)`, float32 inside; see the reference."""
    num_tokens, width = gate_up.shape
    out = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype)
    choose_threads(gate_up.numel())
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


@inlined()
def _clipped_swiglu_row(gates: Any, ups: Any, limit: Any, factor: Any, out: Any) -> None:
    one = np.float32(1.0)
    for i in range(out.shape[0]):
        gate, up = to_float32(gates[i]), to_float32(ups[i])
        # Not min and max: a NaN compares false with everything, and stays.
        gate = limit if gate > limit else gate
        up = limit if up > limit else up
        up = -limit if up < -limit else up
        sigmoid = one / (one + exp2(gate * factor))
        out[i] = from_float32((up + one) * gate * sigmoid, out)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Return `x * sigmoid(gate)`, float32 inside, rounded once; see the reference."""
    out = torch.empty(x.shape, dtype=x.dtype)
    choose_threads(x.numel())
    _sigmoid_mul(as_array(x.contiguous()), as_array(gate.contiguous()), as_array(out))
    return out


@kernel
def _sigmoid_mul(x: Any, gate: Any, out: Any) -> None:
    for token in numba.prange(x.shape[0]):
        _sigmoid_mul_row(x[token], gate[token], out[token])


@inlined()
def _sigmoid_mul_row(x: Any, gate: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(-to_float32(gate[i]) * LOG2_E))
        out[i] = from_float32(to_float32(x[i]) * sigmoid, out)
