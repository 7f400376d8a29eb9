"""Routing of tokens to experts, and the weighted sum of the experts' outputs."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import choose_threads, inlined, kernel
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, exp2
from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.kernels.op_values import Routing

_NO_CORRECTION = torch.empty(0)


def route(logits: Tensor, choice: ExpertChoice, correction: Tensor | None = None) -> Routing:
    """Choose the experts of each token; see the reference. A task is a row."""
    num_chosen = choice.num_chosen
    experts = torch.empty(len(logits), num_chosen, dtype=torch.int64)
    weights = torch.empty(len(logits), num_chosen, dtype=torch.float32)
    choose_threads(logits.numel() * num_chosen)
    _route(
        as_array(logits.contiguous()),
        (_NO_CORRECTION if correction is None else correction).numpy(),
        choice.by_scores(correction is not None),
        choice.score is Score.SOFTMAX,
        choice.score is Score.SIGMOID,
        (choice.num_groups, choice.num_chosen_groups),
        choice.normalize,
        np.float32(choice.sum_eps),
        np.float32(choice.scaling),
        experts.numpy(),
        weights.numpy(),
    )
    return Routing(experts, weights)


@kernel
def _route(
    logits: Any,
    correction: Any,
    by_scores: Any,
    over_all: Any,
    is_sigmoid: Any,
    groups: Any,
    normalize: Any,
    sum_eps: Any,
    scaling: Any,
    experts: Any,
    weights: Any,
) -> None:
    num_experts = logits.shape[1]
    num_groups, num_chosen_groups = groups
    for token in numba.prange(logits.shape[0]):
        row = np.empty(num_experts, np.float32)
        for expert in range(num_experts):
            row[expert] = to_float32(logits[token, expert])
        scores = row.copy()
        if by_scores:
            _score(row, over_all, is_sigmoid, scores)
        keys = scores.copy()
        for expert in range(correction.shape[0]):  # none, or all
            keys[expert] += correction[expert]
        if num_groups > 1:
            _leave_groups(keys, num_groups, num_chosen_groups)
        _choose(keys, experts[token])
        for rank in range(experts.shape[1]):
            weights[token, rank] = scores[experts[token, rank]]
        if not by_scores:
            _score(row, over_all, is_sigmoid, weights[token])
        if normalize:
            _normalize(weights[token], sum_eps)
        for rank in range(experts.shape[1]):
            weights[token, rank] *= scaling


@inlined()
def _choose(keys: Any, chosen: Any) -> None:
    """Write the indices of the largest keys; NaN is the largest."""
    is_free = np.ones(keys.shape[0], np.bool_)
    for rank in range(chosen.shape[0]):
        best = -1
        for place in range(keys.shape[0]):
            if is_free[place] and (
                best < 0
                or keys[place] > keys[best]
                or (keys[place] != keys[place] and keys[best] == keys[best])
            ):
                best = place
        is_free[best] = False
        chosen[rank] = best


@inlined()
def _leave_groups(keys: Any, num_groups: Any, num_chosen: Any) -> None:
    """Write -inf to the keys of all groups but those with the largest sums of their best two."""
    size = keys.shape[0] // num_groups
    best = np.empty(num_groups, np.float32)
    for group in range(num_groups):
        first = second = np.float32(-np.inf)
        for key in keys[group * size : (group + 1) * size]:
            if key > first or key != key:
                first, second = key, first
            elif key > second:
                second = key
        best[group] = first + second
    chosen = np.empty(num_chosen, np.int64)
    _choose(best, chosen)
    is_chosen = np.zeros(num_groups, np.bool_)
    for group in chosen:
        is_chosen[group] = True
    for group in range(num_groups):
        if not is_chosen[group]:
            keys[group * size : (group + 1) * size] = -np.inf


@inlined()
def _score(row: Any, over_all: Any, is_sigmoid: Any, weights: Any) -> None:
    """Replace logits of a row by scores, in place."""
    one = np.float32(1.0)
    if is_sigmoid:
        for rank in range(weights.shape[0]):
            weights[rank] = one / (one + exp2(-weights[rank] * LOG2_E))
    else:
        peak, mass = weights[0], np.float32(0.0)
        for logit in weights:
            peak = logit if logit > peak else peak
        for logit in row if over_all else weights:
            mass += exp2((logit - peak) * LOG2_E)
        for rank in range(weights.shape[0]):
            weights[rank] = exp2((weights[rank] - peak) * LOG2_E) / mass


@inlined()
def _normalize(weights: Any, eps: Any) -> None:
    """Divide weights by their sum plus `eps`, in place."""
    total = np.float32(0.0)
    for weight in weights:
        total += weight
    total += eps
    for rank in range(weights.shape[0]):
        weights[rank] /= total


def combine_experts(
    outputs: Tensor,
    rows: Tensor,
    weights: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of each token; see the reference. A task is a token."""
    num_tokens, size = len(rows), outputs.shape[1]
    out = torch.empty(num_tokens, size, dtype=outputs.dtype)
    nothing = outputs.new_empty(0, 0)
    choose_threads(rows.numel() * size)
    _combine(
        as_array(outputs),
        rows.numpy(),
        weights.numpy(),
        as_array(nothing if shared is None else shared.contiguous()),
        as_array(nothing if shared_gate is None else shared_gate.contiguous()),
        as_array(out),
    )
    return out


@kernel
def _combine(
    outputs: Any, rows: Any, weights: Any, shared: Any, shared_gate: Any, out: Any
) -> None:
    for token in numba.prange(out.shape[0]):
        total = np.zeros(out.shape[1], np.float32)
        for rank in range(rows.shape[1]):
            _add(outputs[rows[token, rank]], weights[token, rank], total)
        if shared.shape[0] > 0:
            factor = np.float32(1.0)
            if shared_gate.shape[0] > 0:
                gate = to_float32(shared_gate[token, 0])
                factor = np.float32(1.0) / (np.float32(1.0) + exp2(-gate * LOG2_E))
            _add(shared[token], factor, total)
        target = out[token]
        for i in range(total.shape[0]):
            target[i] = from_float32(total[i], out)


@inlined()
def _add(row: Any, factor: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] += factor * to_float32(row[i])
