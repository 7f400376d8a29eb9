"""Activations by ops of torch that treat each number alike wherever it lies.

torch computes `sigmoid`, `silu` and `gelu` in wide steps, and what is left over at the end of a
loop by other functions, with other last bits: so a token's result would depend on its place.
"""

import math

import torch
from torch import Tensor

_CURVE = math.sqrt(2.0 / math.pi)


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)) in x's dtype, computed in float32."""
    return _sigmoid(x.float()).to(x.dtype)


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """Return x * sigmoid(x) in x's dtype, computed in float32."""
    wide = x.float()
    return _given(x, wide * _sigmoid(wide), inplace)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x times the share of a normal distribution below it, in x's dtype; computed in
    float32. `approximate` "tanh" takes another function near it."""
    wide = x.float()
    if approximate == "none":
        share = torch.erf(wide * math.sqrt(0.5))
    else:
        share = torch.tanh(_CURVE * (wide + 0.044715 * wide * wide * wide))
    return (0.5 * wide * (1.0 + share)).to(x.dtype)


def _sigmoid(wide: Tensor) -> Tensor:
    return 1.0 / (1.0 + torch.exp(-wide))


def _given(x: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return x.copy_(result) if inplace else result.to(x.dtype)
