"""Gated activations of feed-forward layers (Llama, Gemma, gpt-oss), and the gate after attention.

A program computes one tile of one row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024  # elements of gate and of up in each program: two loads of 16 bytes a thread
_NUM_WARPS = 4


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, float32 inside, rounded once; see the reference."""
    return _gated(gate_up, "silu")


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, float32 inside, rounded once; see the reference."""
    return _gated(gate_up, "gelu_tanh")


def clipped_swiglu(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """Return `(up + 1) * gate * sigmoid(alpha * gate)`, float32 inside; see the reference."""
    return _gated(gate_up, "clipped_swiglu", limit, alpha)


def _gated(gate_up: Tensor, kind: str, limit: float = 0.0, alpha: float = 0.0) -> Tensor:
    assert gate_up.stride(1) == 1, "rows are read in one piece"
    num_tokens, size = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(size, _TILE))
        _gated_activation[grid](
            gate_up,
            out,
            limit,
            alpha,
            gate_up.stride(0),
            size,
            KIND=kind,
            TILE=_TILE,
            num_warps=_NUM_WARPS,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _gated_activation(
    gate_up, out, limit, alpha, stride, size, KIND: tl.constexpr, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    gate = tl.load(gate_up + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + size + columns, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        # For a very negative gate, exp is infinity and the quotient 0, as it should be.
        activated = gate / (1.0 + tl.exp(-gate)) * up
    elif KIND == "gelu_tanh":
        # gelu(x) is x times the sigmoid of 2 sqrt(2 / pi) (x + 0.044715 x³).
        power = -1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        activated = gate / (1.0 + tl.exp(power)) * up
    else:
        # Not minimum and maximum: a NaN compares false with everything, and stays.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, up)
        up = tl.where(up < -limit, -limit, up)
        activated = (up + 1.0) * (gate / (1.0 + tl.exp(-alpha * gate)))
    tl.store(out + row * size + columns, activated, mask=inside)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Return `x * sigmoid(gate)`, float32 inside, rounded once; see the reference."""
    assert x.stride(1) == gate.stride(1) == 1, "rows are read in one piece"
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if len(x):
        grid = (len(x), triton.cdiv(x.shape[1], _TILE))
        _sigmoid_mul[grid](
            x,
            gate,
            out,
            x.stride(0),
            gate.stride(0),
            x.shape[1],
            TILE=_TILE,
            num_warps=_NUM_WARPS,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _sigmoid_mul(x, gate, out, x_stride, gate_stride, size, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    opened = tl.load(gate + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, value / (1.0 + tl.exp(-opened)), mask=inside)
