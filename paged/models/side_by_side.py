"""SideBySide: linear layers of the same input as one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pagedrun.kernels.linear import Linear


class SideBySide:
    """Their outputs lie one after the other; implements `Linear`.

    For weights that cannot be one matrix, since they are held in unlike ways.
    """

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = parts
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self.num_bytes = sum(part.num_bytes for part in parts)
        self.is_packed = all(part.is_packed for part in parts)
        self.row_invariant = all(part.row_invariant for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        return torch.cat([part(x) for part in self._parts], dim=1)
