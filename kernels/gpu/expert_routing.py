"""Choice of a token's experts, and the weighted sum of their results."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.kernels.op_values import Routing

_ROUTE_WARPS = 1  # a row is a few hundred logits at most


def route(logits: Tensor, choice: ExpertChoice, correction: Tensor | None = None) -> Routing:
    """Choose the experts of each token; see the reference."""
    num_tokens, num_experts = logits.shape
    num_chosen = choice.num_chosen
    experts = torch.empty(num_tokens, num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(num_tokens, num_chosen, dtype=torch.float32, device=logits.device)
    if num_tokens:
        _route[(num_tokens,)](
            logits.contiguous(),
            correction,
            experts,
            weights,
            num_experts,
            choice.sum_eps,
            choice.scaling,
            NUM_CHOSEN=num_chosen,
            EXPERTS=triton.next_power_of_2(num_experts),
            RANKS=triton.next_power_of_2(num_chosen),
            OVER_ALL=choice.score is Score.SOFTMAX,
            IS_SIGMOID=choice.score is Score.SIGMOID,
            NORMALIZE=choice.normalize,
            BY_SCORES=choice.by_scores(correction is not None),
            HAS_CORRECTION=correction is not None,
            NUM_GROUPS=choice.num_groups,
            GROUPS=triton.next_power_of_2(choice.num_groups),
            NUM_CHOSEN_GROUPS=choice.num_chosen_groups,
            num_warps=_ROUTE_WARPS,
            enable_fp_fusion=False,
        )
    return Routing(experts, weights)


@triton.jit
def _route(
    logits,
    correction,
    experts,
    weights,
    num_experts,
    sum_eps,
    scaling,
    NUM_CHOSEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    RANKS: tl.constexpr,
    OVER_ALL: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BY_SCORES: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    NUM_CHOSEN_GROUPS: tl.constexpr,
):
    """Route one token."""
    token = tl.program_id(0).to(tl.int64)
    numbers, ranks = tl.arange(0, EXPERTS), tl.arange(0, RANKS)
    inside = numbers < num_experts
    row = tl.load(logits + token * num_experts + numbers, mask=inside, other=-float("inf"))
    row = row.to(tl.float32)
    scores = row
    if BY_SCORES:
        if IS_SIGMOID:
            scores = 1.0 / (1.0 + tl.exp(-row))
        else:
            result = tl.where(inside, tl.exp(row - tl.max(row, axis=0)), 0.0)
            scores = result / tl.sum(result, axis=0)
    keys = scores
    if HAS_CORRECTION:
        keys += tl.load(correction + numbers, mask=inside, other=0.0)
    keys = tl.where(keys != keys, float("inf"), keys)  # a NaN is chosen first
    if NUM_GROUPS > 1:
        size = num_experts // NUM_GROUPS
        is_chosen = _in_chosen_groups(
            keys, numbers // size, numbers, NUM_GROUPS, GROUPS, NUM_CHOSEN_GROUPS
        )
        keys = tl.where(is_chosen, keys, -float("inf"))
    is_free = inside
    chosen = tl.full((RANKS,), -float("inf"), tl.float32)
    for rank in tl.static_range(NUM_CHOSEN):
        best = tl.max(tl.where(is_free, keys, -float("inf")), axis=0)
        expert = tl.min(tl.where(is_free & (keys == best), numbers, EXPERTS), axis=0)
        is_free = is_free & (numbers != expert)
        chosen = tl.where(ranks == rank, tl.sum(tl.where(numbers == expert, scores, 0.0)), chosen)
        tl.store(experts + token * NUM_CHOSEN + rank, expert.to(tl.int64))
    if BY_SCORES:
        result = chosen
    elif IS_SIGMOID:
        result = 1.0 / (1.0 + tl.exp(-chosen))
    else:
        peak = tl.max(chosen, axis=0)
        result = tl.exp(chosen - peak)
        if OVER_ALL:
            result /= tl.sum(tl.where(inside, tl.exp(row - peak), 0.0), axis=0)
        else:
            result /= tl.sum(tl.where(ranks < NUM_CHOSEN, result, 0.0), axis=0)
    if NORMALIZE:
        result /= tl.sum(tl.where(ranks < NUM_CHOSEN, result, 0.0), axis=0) + sum_eps
    result *= scaling
    tl.store(weights + token * NUM_CHOSEN + ranks, result, mask=ranks < NUM_CHOSEN)


@triton.jit
def _in_chosen_groups(
    keys,
    group_of,
    numbers,
    NUM_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
):
    """Return a mask of the experts in the groups with the largest sums of their best two."""
    groups = tl.arange(0, GROUPS)
    sums = tl.full((GROUPS,), -float("inf"), tl.float32)
    for group in range(NUM_GROUPS):
        own = tl.where(group_of == group, keys, -float("inf"))
        first = tl.max(own, axis=0)
        at = tl.argmax(own, axis=0)
        second = tl.max(tl.where(numbers == at, -float("inf"), own), axis=0)
        sums = tl.where(groups == group, first + second, sums)
    sums = tl.where(sums != sums, float("inf"), sums)
    is_free = groups < NUM_GROUPS
    is_chosen = group_of < 0
    for _ in range(NUM_CHOSEN):
        best = tl.max(tl.where(is_free, sums, -float("inf")), axis=0)
        group = tl.min(tl.where(is_free & (sums == best), groups, GROUPS), axis=0)
        is_free = is_free & (groups != group)
        is_chosen = is_chosen | (group_of == group)
    return is_chosen


_COMBINE_TILE = 1024
_COMBINE_WARPS = 4


def combine_experts(
    outputs: Tensor,
    rows: Tensor,
    weights: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of each token; see the reference."""
    (num_tokens, num_chosen), size = rows.shape, outputs.shape[1]
    out = torch.empty(num_tokens, size, dtype=outputs.dtype, device=outputs.device)
    if num_tokens:
        _combine[(num_tokens, triton.cdiv(size, _COMBINE_TILE))](
            outputs,
            rows,
            weights,
            None if shared is None else shared.contiguous(),
            None if shared_gate is None else shared_gate.contiguous(),
            out,
            size,
            NUM_CHOSEN=num_chosen,
            TILE=_COMBINE_TILE,
            num_warps=_COMBINE_WARPS,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _combine(
    outputs,
    rows,
    weights,
    shared,
    shared_gate,
    out,
    size,
    NUM_CHOSEN: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute some columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    total = tl.zeros((TILE,), tl.float32)
    for rank in tl.static_range(NUM_CHOSEN):
        row = tl.load(rows + token * NUM_CHOSEN + rank)
        weight = tl.load(weights + token * NUM_CHOSEN + rank)
        own = tl.load(outputs + row * size + columns, mask=inside, other=0.0).to(tl.float32)
        total += weight * own
    if shared is not None:
        all_pass = tl.load(shared + token * size + columns, mask=inside, other=0.0).to(tl.float32)
        if shared_gate is not None:
            gate = tl.load(shared_gate + token).to(tl.float32)
            all_pass *= 1.0 / (1.0 + tl.exp(-gate))
        total += all_pass
    tl.store(out + token * size + columns, total, mask=inside)
