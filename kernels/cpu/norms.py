"""RMS and layer normalization: of rows, of sums with the residual, and of gated heads."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import FAST_SUMS, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, exp2


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Normalize each row of `x`, float32 inside, rounded once; see the reference."""
    out = torch.empty(x.shape, dtype=dtype or weight.dtype)
    choose_threads(x.numel())
    _rms_norm(as_array(x.contiguous()), as_array(weight), np.float32(eps), as_array(out))
    return out


@kernel
def _rms_norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    for token in numba.prange(x.shape[0]):
        normalize(x[token], weight, eps, out[token])


@inlined()
def normalize(x: Any, weight: Any, eps: Any, out: Any) -> None:
    """Write one normalized row; all arrays are [hidden_size]."""
    factor = inverse_rms(x, eps)
    for i in range(x.shape[0]):
        out[i] = from_float32(to_float32(x[i]) * factor * to_float32(weight[i]), out)


@inlined(fastmath=FAST_SUMS)
def inverse_rms(x: Any, eps: Any) -> Any:
    """Return `1 / sqrt(mean(x²) + eps)` of one row as float32."""
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        value = to_float32(x[i])
        total += value * value
    return np.float32(1.0) / np.sqrt(total / np.float32(x.shape[0]) + eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to the float32 `residual` in place and normalize the sum; see the reference."""
    assert residual.is_contiguous(), "the residual is updated in place"
    out = torch.empty(x.shape, dtype=x.dtype)
    choose_threads(x.numel())
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


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize, weight and gate each head of x; see the reference."""
    out = torch.empty(x.shape, dtype=x.dtype)
    size = len(weight)
    choose_threads(x.numel())
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


@inlined()
def _gated_head(x: Any, gates: Any, weight: Any, eps: Any, out: Any) -> None:
    factor = inverse_rms(x, eps)
    for i in range(out.shape[0]):
        gate = to_float32(gates[i])
        sigmoid = np.float32(1.0) / (np.float32(1.0) + exp2(-gate * LOG2_E))
        normalized = to_float32(x[i]) * factor * to_float32(weight[i])
        out[i] = from_float32(normalized * gate * sigmoid, out)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype | None = None
) -> Tensor:
    """Normalize each row of `x` by mean and variance, float32 inside; see the reference."""
    out = torch.empty(x.shape, dtype=dtype or weight.dtype)
    choose_threads(x.numel())
    _layer_norm(
        as_array(x.contiguous()),
        as_array(weight),
        as_array(weight[:0] if bias is None else bias),
        np.float32(eps),
        as_array(out),
    )
    return out


@kernel
def _layer_norm(x: Any, weight: Any, bias: Any, eps: Any, out: Any) -> None:
    for token in numba.prange(x.shape[0]):
        _normalize_by_mean(x[token], weight, bias, eps, out[token])


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """Add `x` to the float32 `residual` in place and normalize the sum; see the reference."""
    assert residual.is_contiguous(), "the residual is updated in place"
    out = torch.empty(x.shape, dtype=x.dtype)
    choose_threads(x.numel())
    _add_layer_norm(
        as_array(x.contiguous()),
        as_array(residual),
        as_array(weight),
        as_array(weight[:0] if bias is None else bias),
        np.float32(eps),
        as_array(out),
    )
    return out


@kernel
def _add_layer_norm(x: Any, residual: Any, weight: Any, bias: Any, eps: Any, out: Any) -> None:
    for token in numba.prange(x.shape[0]):
        for i in range(x.shape[1]):
            residual[token, i] += to_float32(x[token, i])
        _normalize_by_mean(residual[token], weight, bias, eps, out[token])


@inlined()
def _normalize_by_mean(x: Any, weight: Any, bias: Any, eps: Any, out: Any) -> None:
    mean = _mean(x)
    factor = np.float32(1.0) / np.sqrt(_variance(x, mean) + eps)
    if bias.shape[0] > 0:
        for i in range(x.shape[0]):
            scaled = (to_float32(x[i]) - mean) * factor * to_float32(weight[i])
            out[i] = from_float32(scaled + to_float32(bias[i]), out)
    else:
        for i in range(x.shape[0]):
            scaled = (to_float32(x[i]) - mean) * factor * to_float32(weight[i])
            out[i] = from_float32(scaled, out)


@inlined(fastmath=FAST_SUMS)
def _mean(x: Any) -> Any:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += to_float32(x[i])
    return total / np.float32(x.shape[0])


@inlined(fastmath=FAST_SUMS)
def _variance(x: Any, mean: Any) -> Any:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        value = to_float32(x[i]) - mean
        total += value * value
    return total / np.float32(x.shape[0])
