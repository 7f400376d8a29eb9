"""Root-mean-square normalisation of heads, each then multiplied by its gate."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return each head of x, normalised, times `weight` and `silu(gate)`, rounded once.

    x, gate: [num_tokens, num_heads * head_dim]. weight: [head_dim]. Returns the shape and dtype of
    x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    heads = torch.unflatten(x.to(wide), 1, (-1, len(weight)))
    factor = torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    normalized = (heads * factor * weight.to(wide)).flatten(1)
    return (normalized * silu(gate.to(wide))).to(x.dtype)
