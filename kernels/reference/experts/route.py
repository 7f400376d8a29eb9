"""Which experts a token passes, and with what weights."""

import torch
from torch import Tensor

from pagedrun.kernels.routing import Routing
from pagedrun.kernels.score import Score


def route(logits: Tensor, num_chosen: int, score: Score, normalise: bool) -> Routing:
    """Choose the experts with the largest logits, the lowest number first among equal ones.

    logits: [num_tokens, num_experts], computed in float32. The weights of the chosen are their
    softmax over all experts, their softmax among the chosen, or their sigmoid; `normalise` divides
    them by their sum. All scores rise with the logits, so the
    choice does not depend on the score. A NaN is chosen first: its token's result is NaN, and
    nobody else's.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    ranked, experts = wide.sort(dim=-1, descending=True, stable=True)
    experts, chosen = experts[:, :num_chosen], ranked[:, :num_chosen]
    if score is Score.SOFTMAX:
        weights = wide.softmax(dim=-1).gather(1, experts)
    elif score is Score.SOFTMAX_OF_CHOSEN:
        weights = chosen.softmax(dim=-1)
    else:
        weights = chosen.sigmoid()
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return Routing(experts, weights)
