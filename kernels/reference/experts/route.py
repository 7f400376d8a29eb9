"""Which experts a token passes, and with what weights."""

import torch
from torch import Tensor

from pagedrun.kernels.experts.expert_choice import ExpertChoice
from pagedrun.kernels.experts.routing import Routing
from pagedrun.kernels.experts.score import Score


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
    if choice.normalise:
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
