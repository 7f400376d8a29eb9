"""The gated activation of a Gemma feed-forward layer."""

import torch
from torch import Tensor
from torch.nn import functional


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, where `gate_up` holds gate and up side by side.

    gate_up: [num_tokens, 2 * intermediate_size]. Returns [num_tokens, intermediate_size] in the
    same dtype, rounded once. gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))).
    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2.
    """
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)
