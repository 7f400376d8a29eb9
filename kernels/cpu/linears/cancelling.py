"""Operands of which nothing is left but the order of summation.

With random data, rounding to bfloat16 hides most changes of that order. Here the exact value of
every sum is 0, so that what comes out is the rounding noise of one order of adding up.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class CancellingOperands(NamedTuple):
    """weight: [out_features, in_features], all rows alike. x: [num_rows, in_features]."""

    weight: Tensor
    x: Tensor

    @classmethod
    def make(
        cls, out_features: int, in_features: int, num_rows: int, dtype: torch.dtype, seed: int = 0
    ) -> "CancellingOperands":
        """Pair positions at random: weights of a pair are equal, inputs opposite.

        Magnitudes of the inputs spread over 2^-6 to 2^6, so that the sums on the way are rounded.
        """
        generator = torch.Generator().manual_seed(seed)
        half = in_features // 2
        places = torch.randperm(in_features, generator=generator)
        one, other = places[:half], places[half : 2 * half]
        factors = torch.zeros(in_features)
        factors[one] = factors[other] = torch.randn(half, generator=generator)
        scale = torch.randint(-6, 7, (num_rows, half), generator=generator).float().exp2()
        values = torch.randn(num_rows, half, generator=generator) * scale
        x = torch.zeros(num_rows, in_features)
        x[:, one], x[:, other] = values, -values
        weight = factors.to(dtype).expand(out_features, in_features).contiguous()
        return cls(weight, x.to(dtype))
