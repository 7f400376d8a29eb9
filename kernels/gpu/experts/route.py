"""Which experts a token passes, and with what weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.routing import Routing
from pagedrun.kernels.score import Score

_NUM_WARPS = 1  # a row is a few hundred logits at most


def route(logits: Tensor, num_chosen: int, score: Score, normalise: bool) -> Routing:
    """Choose the experts with the largest logits; see the reference."""
    num_tokens, num_experts = logits.shape
    experts = torch.empty(num_tokens, num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(num_tokens, num_chosen, dtype=torch.float32, device=logits.device)
    if num_tokens:
        _route[(num_tokens,)](
            logits.contiguous(),
            experts,
            weights,
            num_experts,
            NUM_CHOSEN=num_chosen,
            EXPERTS=triton.next_power_of_2(num_experts),
            RANKS=triton.next_power_of_2(num_chosen),
            OVER_ALL=score is Score.SOFTMAX,
            IS_SIGMOID=score is Score.SIGMOID,
            NORMALISE=normalise,
            num_warps=_NUM_WARPS,
        )
    return Routing(experts, weights)


@triton.jit
def _route(
    logits,
    experts,
    weights,
    num_experts,
    NUM_CHOSEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    RANKS: tl.constexpr,
    OVER_ALL: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """One program: one token."""
    token = tl.program_id(0).to(tl.int64)
    numbers, ranks = tl.arange(0, EXPERTS), tl.arange(0, RANKS)
    inside = numbers < num_experts
    row = tl.load(logits + token * num_experts + numbers, mask=inside, other=-float("inf"))
    row = row.to(tl.float32)
    keys = tl.where(row != row, float("inf"), row)  # a NaN is chosen first
    is_free = inside
    chosen = tl.full((RANKS,), -float("inf"), tl.float32)
    for rank in tl.static_range(NUM_CHOSEN):
        best = tl.max(tl.where(is_free, keys, -float("inf")), axis=0)
        expert = tl.min(tl.where(is_free & (keys == best), numbers, EXPERTS), axis=0)
        is_free = is_free & (numbers != expert)
        chosen = tl.where(ranks == rank, tl.sum(tl.where(numbers == expert, row, 0.0)), chosen)
        tl.store(experts + token * NUM_CHOSEN + rank, expert.to(tl.int64))
    if IS_SIGMOID:
        result = 1.0 / (1.0 + tl.exp(-chosen))
    else:
        peak = tl.sum(tl.where(ranks == 0, chosen, 0.0), axis=0)
        result = tl.exp(chosen - peak)
        if OVER_ALL:
            result /= tl.sum(tl.where(inside, tl.exp(row - peak), 0.0), axis=0)
        else:
            result /= tl.sum(tl.where(ranks < NUM_CHOSEN, result, 0.0), axis=0)
    if NORMALISE:
        result /= tl.sum(tl.where(ranks < NUM_CHOSEN, result, 0.0), axis=0)
    tl.store(weights + token * NUM_CHOSEN + ranks, result, mask=ranks < NUM_CHOSEN)
