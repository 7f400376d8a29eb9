"""Root-mean-square normalisation."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return `x / sqrt(mean(x²) + eps) * weight`, row by row, rounded once at the end.

    x: [num_tokens, hidden_size], any float dtype. weight: [hidden_size].
    Returns [num_tokens, hidden_size] in `dtype`; None: that of `weight`.
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance = wide.square().mean(dim=-1, keepdim=True)
    return (wide * torch.rsqrt(variance + eps) * weight.to(wide.dtype)).to(dtype or weight.dtype)
