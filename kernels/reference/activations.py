"""Gated activations of feed-forward layers (Llama, Gemma, gpt-oss); the gate after attention."""

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, where `gate_up` holds gate and up side by side.

    gate_up: [num_tokens, 2 * intermediate_size]. Returns [num_tokens, intermediate_size] in the
    same dtype, rounded once. `silu(x) = x / (1 + exp(-x))`.
    """
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, where `gate_up` holds gate and up side by side.

    gate_up: [num_tokens, 2 * intermediate_size]. Returns [num_tokens, intermediate_size] in the
    same dtype, rounded once. gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))).
    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2.
    """
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


def clipped_swiglu(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """Return `(up + 1) * gate * sigmoid(alpha * gate)`, of gate and up side by side and clipped.

    gate_up: [num_tokens, 2 * intermediate_size]. A gate is at most `limit`, an up is within -limit
    .. limit; a NaN stays. Returns [num_tokens, intermediate_size] in the same dtype, rounded once.
    """
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Return `x * sigmoid(gate)`, float32 inside, rounded once.

    x, gate: [num_tokens, size]. Returns the shape and dtype of x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * gate.to(wide).sigmoid()).to(x.dtype)
