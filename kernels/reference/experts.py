"""Mixture of experts (MoE): routing, and linear layers of many experts."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.kernels.op_values import Routing


def route(logits: Tensor, choice: ExpertChoice, correction: Tensor | None = None) -> Routing:
    """Choose each token's experts, the lowest number first among equal ones.

    logits: [num_tokens, num_experts], computed in float32. The scores are their softmax over all
    experts or among the chosen, or their sigmoid. correction: [num_experts] float32, what is added
    to the scores where experts are compared, and not to the weights. A NaN is chosen first: its
    token's result is NaN, and no other's.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = wide if choice.score is Score.SOFTMAX_OF_CHOSEN else _scores(wide, choice.score)
    keys = scores if choice.by_scores(correction is not None) else wide
    if correction is not None:
        keys = keys + correction
    if choice.num_groups > 1:
        keys = _in_chosen_groups(keys, choice)
    experts = keys.sort(dim=-1, descending=True, stable=True).indices[:, : choice.num_chosen]
    weights = scores.gather(1, experts)
    if choice.score is Score.SOFTMAX_OF_CHOSEN:
        weights = weights.softmax(dim=-1)
    if choice.normalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + choice.sum_eps)
    return Routing(experts, weights * choice.scaling)


def _scores(logits: Tensor, score: Score) -> Tensor:
    return logits.sigmoid() if score is Score.SIGMOID else logits.softmax(dim=-1)


def _in_chosen_groups(keys: Tensor, choice: ExpertChoice) -> Tensor:
    """Return the keys of experts, -inf for those whose group is not among the chosen."""
    groups = keys.view(len(keys), choice.num_groups, keys.shape[1] // choice.num_groups)
    best = groups.topk(2, dim=-1).values.sum(dim=-1)
    chosen = best.sort(dim=-1, descending=True, stable=True).indices[:, : choice.num_chosen_groups]
    is_chosen = torch.zeros_like(best, dtype=torch.bool).scatter(1, chosen, True)
    return groups.masked_fill(~is_chosen[..., None], -torch.inf).flatten(1)


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
