"""The gated activation of gpt-oss's experts."""

import torch
from torch import Tensor


def clipped_swiglu(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """Return `(up + 1) * gate * sigmoid(alpha * gate)`, of gate and up side by side and clipped.

    gate_up: [num_tokens, 2 * intermediate_size]. A gate is at most `limit`, an up is within -limit
    .. limit; a NaN stays. Returns [num_tokens, intermediate_size] in the same dtype, rounded once.
    """
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)
