"""Which experts a token passes, and with what weights."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread
from pagedrun.kernels.routing import Routing
from pagedrun.kernels.score import Score


def route(logits: Tensor, num_chosen: int, score: Score, normalise: bool) -> Routing:
    """Choose the experts with the largest logits; see the reference. A row is one thread's."""
    experts = torch.empty(len(logits), num_chosen, dtype=torch.int64)
    weights = torch.empty(len(logits), num_chosen, dtype=torch.float32)
    spread(logits.numel() * num_chosen)
    _route(
        as_array(logits.contiguous()),
        score is Score.SOFTMAX,
        score is Score.SIGMOID,
        normalise,
        experts.numpy(),
        weights.numpy(),
    )
    return Routing(experts, weights)


@kernel
def _route(
    logits: Any, over_all: Any, is_sigmoid: Any, normalise: Any, experts: Any, weights: Any
) -> None:
    num_experts = logits.shape[1]
    for token in numba.prange(logits.shape[0]):
        row = np.empty(num_experts, np.float32)
        for expert in range(num_experts):
            row[expert] = to_float32(logits[token, expert])
        _choose(row, experts[token], weights[token])
        _score(row, over_all, is_sigmoid, normalise, weights[token])


@part()
def _choose(row: Any, experts: Any, chosen: Any) -> None:
    """Write the largest logits and their experts; a NaN counts as larger than all numbers."""
    is_free = np.ones(row.shape[0], np.bool_)
    for rank in range(experts.shape[0]):
        best = -1
        for expert in range(row.shape[0]):
            if is_free[expert] and (
                best < 0
                or row[expert] > row[best]
                or (row[expert] != row[expert] and row[best] == row[best])
            ):
                best = expert
        is_free[best] = False
        experts[rank] = best
        chosen[rank] = row[best]


@part()
def _score(row: Any, over_all: Any, is_sigmoid: Any, normalise: Any, weights: Any) -> None:
    """Turn the chosen logits into weights, in place."""
    one = np.float32(1.0)
    if is_sigmoid:
        for rank in range(weights.shape[0]):
            weights[rank] = one / (one + exp2(-weights[rank] * LOG2_E))
    else:
        peak, mass = weights[0], np.float32(0.0)
        for logit in row if over_all else weights:
            mass += exp2((logit - peak) * LOG2_E)
        for rank in range(weights.shape[0]):
            weights[rank] = exp2((weights[rank] - peak) * LOG2_E) / mass
    if normalise:
        total = np.float32(0.0)
        for weight in weights:
            total += weight
        for rank in range(weights.shape[0]):
            weights[rank] /= total
