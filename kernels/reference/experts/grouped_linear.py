"""The linear layers of many experts."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional


class PackedGroupedLinear:
    """`y = x @ weight[e].T + bias[e]`, where each row x has an expert e; see `GroupedLinear`.

    weights: a sequence of parts whose outputs lie side by side, each a sequence of one matrix
    [out_features of the part, in_features] for each expert. All matrices have one shape and dtype.
    bias: [num_experts, out_features of all parts], the same dtype, or None. A twin may copy them
    into a layout of its own. As `PackedLinear` this class is about values, and promises no bytes.
    """

    row_invariant = False

    def __init__(self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None) -> None:
        self._weights = weights
        self._biases = [None] * len(weights) if bias is None else bias.chunk(len(weights), dim=1)
        self.num_experts = len(weights[0])
        out_features, self.in_features = weights[0][0].shape
        self.out_features = len(weights) * out_features
        self.num_bytes = sum(matrix.nbytes for part in weights for matrix in part)
        self.num_bytes += 0 if bias is None else bias.nbytes

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x."""
        x = x if tokens is None else x[tokens]
        out = x.new_empty(len(x), self.out_features)
        for expert, (start, end) in enumerate(pairwise(starts.tolist())):
            if end > start:
                own = x[start:end]
                parts = [
                    functional.linear(own, part[expert], None if bias is None else bias[expert])
                    for part, bias in zip(self._weights, self._biases, strict=True)
                ]
                out[start:end] = torch.cat(parts, dim=1)
        return out
