"""Root-mean-square and layer normalization of rows, alone or after a residual addition."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return `x / sqrt(mean(x²) + eps) * weight`, row by row, rounded once at the end.

    x: [num_tokens, hidden_size], any float dtype. weight: [hidden_size].
    Returns [num_tokens, hidden_size] in `dtype`; None: that of `weight`.
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance = wide.square().mean(dim=-1, keepdim=True)
    return (wide * torch.rsqrt(variance + eps) * weight.to(wide.dtype)).to(dtype or weight.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to `residual` in place and return the normalized sum times `weight`.

    x: [num_tokens, hidden_size], model dtype. residual: [num_tokens, hidden_size], float32 and
    contiguous, updated in place: the residual stream is never rounded to the model dtype.
    weight: [hidden_size]. Returns [num_tokens, hidden_size] in the dtype of `x`.
    """
    residual += x
    return rms_norm(residual, weight, eps, x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return each head of x, normalized, times `weight` and `silu(gate)`, rounded once.

    x, gate: [num_tokens, num_heads * head_dim]. weight: [head_dim]. Returns the shape and dtype of
    x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    heads = torch.unflatten(x.to(wide), 1, (-1, len(weight)))
    factor = torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    normalized = (heads * factor * weight.to(wide)).flatten(1)
    return (normalized * silu(gate.to(wide))).to(x.dtype)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype | None = None
) -> Tensor:
    """Return `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, row by row, rounded once.

    x: [num_tokens, hidden_size], any float dtype. weight, bias: [hidden_size]; no bias is 0.
    Returns [num_tokens, hidden_size] in `dtype`; None: that of `weight`.
    Source: Ba, Kiros and Hinton 2016, "Layer Normalization", arXiv:1607.06450.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = wide - wide.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    scaled = centered * torch.rsqrt(variance + eps) * weight.to(wide.dtype)
    if bias is not None:
        scaled = scaled + bias.to(wide.dtype)
    return scaled.to(dtype or weight.dtype)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """Add `x` to `residual` in place and return the sum after `layer_norm`.

    x: [num_tokens, hidden_size], model dtype. residual: [num_tokens, hidden_size], float32 and
    contiguous. Returns [num_tokens, hidden_size] in the dtype of `x`.
    """
    residual += x
    return layer_norm(residual, weight, bias, eps, x.dtype)
