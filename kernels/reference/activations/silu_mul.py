"""The gated activation of a Llama feed-forward layer."""

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, where `gate_up` holds gate and up side by side.

    gate_up: [num_tokens, 2 * intermediate_size]. Returns [num_tokens, intermediate_size] in the
    same dtype, rounded once. `silu(x) = x / (1 + exp(-x))`.
    """
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
