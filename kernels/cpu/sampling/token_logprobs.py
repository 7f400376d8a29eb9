"""Log-probabilities of tokens, and the tokens that were likeliest instead.

One task is one token. Sums run over blocks of a fixed size, in the order of the vocabulary.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import REORDERED, kernel, part, spread
from pagedrun.kernels.token_logprobs import TokenLogprobs

_BLOCK = 1024  # tokens whose sum is float32; those of all blocks are added as float64


def token_logprobs(logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
    """Return how likely tokens are; see the reference."""
    found = TokenLogprobs(
        torch.empty(len(ids), dtype=torch.float32),
        torch.empty(len(ids), dtype=torch.int64),
        torch.empty(len(ids), num_top, dtype=torch.int64),
        torch.empty(len(ids), num_top, dtype=torch.float32),
    )
    spread(len(ids) * logits.shape[1])
    _token_logprobs(
        as_array(logits.contiguous()), as_array(rows), as_array(ids), *map(as_array, found)
    )
    return found


@kernel
def _token_logprobs(
    logits: Any,
    rows: Any,
    ids: Any,
    logprobs: Any,
    ranks: Any,
    top_ids: Any,
    top_logprobs: Any,
) -> None:
    for t in numba.prange(ids.shape[0]):
        x = logits[rows[t]]
        peak = _find_top(x, top_ids[t], top_logprobs[t])
        log_sum = np.float64(peak) + np.log(_sum_exp(x, peak))
        chosen = to_float32(x[ids[t]])
        ranks[t] = _num_at_least(x, chosen)
        logprobs[t] = np.float32(np.float64(chosen) - log_sum)
        for i in range(top_ids.shape[1]):
            top_logprobs[t, i] = np.float32(np.float64(top_logprobs[t, i]) - log_sum)


@part()
def _find_top(x: Any, top_ids: Any, top: Any) -> Any:
    """Write the largest of a row with their ids, largest first; return the largest, NaN if any."""
    count, num_top = 0, top.shape[0]
    peak, has_nan = np.float32(-np.inf), False
    for v in range(x.shape[0]):
        value = to_float32(x[v])
        has_nan |= value != value
        peak = max(peak, value)
        if num_top and (count < num_top or value > top[num_top - 1]):
            place = min(count, num_top - 1)
            while place > 0 and value > top[place - 1]:
                top[place], top_ids[place] = top[place - 1], top_ids[place - 1]
                place -= 1
            top[place], top_ids[place] = value, v
            count = min(count + 1, num_top)
    return np.float32(np.nan) if has_nan else peak


@part()
def _sum_exp(x: Any, peak: Any) -> Any:
    """Return the sum of `exp(x - peak)` as float64."""
    total = np.float64(0.0)
    for start in range(0, x.shape[0], _BLOCK):
        total += np.float64(_sum_exp_block(x[start : min(start + _BLOCK, x.shape[0])], peak))
    return total


@part(fastmath=REORDERED)
def _sum_exp_block(x: Any, peak: Any) -> Any:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += exp2((to_float32(x[i]) - peak) * LOG2_E)
    return total


@part()
def _num_at_least(x: Any, chosen: Any) -> Any:
    count = np.int32(0)
    for i in range(x.shape[0]):
        count += np.int32(to_float32(x[i]) >= chosen)
    return count
