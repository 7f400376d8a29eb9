"""The gate behind attention."""

import torch
from torch import Tensor


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Return `x * sigmoid(gate)`, float32 inside, rounded once.

    x, gate: [num_tokens, size]. Returns the shape and dtype of x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * gate.to(wide).sigmoid()).to(x.dtype)
