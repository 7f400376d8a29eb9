"""Activation functions of feed-forward layers and the gate of attention; a task is a token."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import EXACT, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, NUM_LANES, exp2, fused, splat, where_less
from pagedrun.kernels.cpu.simd.words import read_lanes, write_lanes


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
        out[i] = from_float32(_tanh_gelu(to_float32(gates[i])) * to_float32(ups[i]), out)


@inlined()
def _tanh_gelu(x: Any) -> Any:
    power = _LINEAR * (x + _CUBIC * x * x * x)
    return x * (np.float32(1.0) / (np.float32(1.0) + exp2(power)))


def gelu_tanh(x: Tensor) -> Tensor:
    """Return gelu by tanh, float32 inside, rounded once; see the reference."""
    out = torch.empty(x.shape, dtype=x.dtype)
    choose_threads(x.numel())
    _gelu_tanh(as_array(x.contiguous()), as_array(out))
    return out


@kernel
def _gelu_tanh(x: Any, out: Any) -> None:
    for token in numba.prange(out.shape[0]):
        _gelu_tanh_row(x[token], out[token])


@inlined()
def _gelu_tanh_row(x: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = from_float32(_tanh_gelu(to_float32(x[i])), out)


def gelu(x: Tensor) -> Tensor:
    """Return gelu by the error function, float32 inside, rounded once; see the reference."""
    out = torch.empty(x.shape, dtype=x.dtype)
    choose_threads(x.numel())
    _gelu(as_array(x.contiguous()), as_array(out))
    return out


@kernel
def _gelu(x: Any, out: Any) -> None:
    for token in numba.prange(out.shape[0]):
        gelu_row(x[token], out[token])


@inlined()
def gelu_row(x: Any, out: Any) -> None:
    """Write gelu of a row to another one, which may be the same."""
    lanes_end = out.shape[0] // NUM_LANES * NUM_LANES
    for i in range(0, lanes_end, NUM_LANES):
        write_lanes(out, i, _erf_gelu_lanes(read_lanes(x, i)))
    for i in range(lanes_end, out.shape[0]):
        out[i] = from_float32(_erf_gelu(to_float32(x[i])), out)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up` by the error function, rounded once; see the reference."""
    num_tokens, width = gate_up.shape
    out = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype)
    choose_threads(gate_up.numel())
    _gelu_mul(as_array(gate_up.contiguous()), as_array(out))
    return out


@kernel
def _gelu_mul(gate_up: Any, out: Any) -> None:
    width = out.shape[1]
    for token in numba.prange(out.shape[0]):
        _gelu_mul_row(gate_up[token, :width], gate_up[token, width:], out[token])


@inlined()
def _gelu_mul_row(gates: Any, ups: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = from_float32(_erf_gelu(to_float32(gates[i])) * to_float32(ups[i]), out)


# erf(x) of float32 is x P(x²) / Q(x²) for |x| below 3.83, where it is 1 but for a bit: the rational
# minimax approximation of Eigen and XLA, vectorized by LLVM unlike the library's function.
_HALF_ROOT = np.float32(0.7071067811865476)
_ERF_END = np.float32(3.832506856900711)
_P0, _P1, _P2, _P3 = map(
    np.float32,
    (-1.60960333262415e-02, -2.95459980854025e-03, -7.34990630326855e-04, -5.69250639462346e-05),
)
_P4, _P5, _P6 = map(
    np.float32, (-2.10102402082508e-06, 2.77068142495902e-08, -2.72614225801306e-10)
)
_Q0, _Q1, _Q2, _Q3, _Q4 = map(
    np.float32,
    (
        *(-1.42647390514189e-02, -7.37332916720468e-03, -1.68282697438203e-03),
        *(-2.13374055278905e-04, -1.45660718464996e-05),
    ),
)


@inlined()
def _erf_gelu(x: Any) -> Any:
    scaled = x * _HALF_ROOT
    # Not min and max: a NaN compares false with everything, and stays.
    scaled = _ERF_END if scaled > _ERF_END else scaled
    scaled = -_ERF_END if scaled < -_ERF_END else scaled
    square = scaled * scaled
    p = _P5 + square * _P6
    p = _P4 + square * p
    p = _P3 + square * p
    p = _P2 + square * p
    p = _P1 + square * p
    p = _P0 + square * p
    q = _Q3 + square * _Q4
    q = _Q2 + square * q
    q = _Q1 + square * q
    q = _Q0 + square * q
    erf = scaled * p / q
    # Exactly, so that far below 0 nothing is left.
    erf = np.float32(1.0) if scaled >= _ERF_END else erf
    erf = np.float32(-1.0) if scaled <= -_ERF_END else erf
    return np.float32(0.5) * x * (np.float32(1.0) + erf)


@inlined(fastmath=EXACT)
def _erf_gelu_lanes(x: Any) -> Any:
    """Return `_erf_gelu` of each lane, the same bits: LLVM's own code has half of the lanes."""
    one, end = splat(np.float32(1.0)), splat(_ERF_END)
    start = splat(np.float32(-_ERF_END))
    scaled = x * splat(_HALF_ROOT)
    scaled = where_less(end, scaled, end, scaled)
    scaled = where_less(scaled, start, start, scaled)
    square = scaled * scaled
    p = fused(square, splat(_P6), splat(_P5))
    p = fused(square, p, splat(_P4))
    p = fused(square, p, splat(_P3))
    p = fused(square, p, splat(_P2))
    p = fused(square, p, splat(_P1))
    p = fused(square, p, splat(_P0))
    q = fused(square, splat(_Q4), splat(_Q3))
    q = fused(square, q, splat(_Q2))
    q = fused(square, q, splat(_Q1))
    q = fused(square, q, splat(_Q0))
    erf = scaled * p / q
    # Where x is NaN, so is the product below.
    erf = where_less(scaled, end, erf, one)
    erf = where_less(start, scaled, erf, splat(np.float32(-1.0)))
    return splat(np.float32(0.5)) * x * (one + erf)


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
