"""Processing of logits (soft cap, grammar bitmasks, penalties) and log-probabilities of tokens.

One task is one row, or one token of the log-probabilities, whose sums run over blocks of a fixed
size in the order of the vocabulary.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import EXACT, FAST_SUMS, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, exp2
from pagedrun.kernels.op_values import TokenLogprobs

_ONE, _TWO = np.float32(1.0), np.float32(2.0)


def cap_logits(logits: Tensor, cap: float) -> None:
    """Apply a tanh soft cap to logits, in place; see the reference."""
    assert logits.is_contiguous(), "updated in place"
    choose_threads(logits.numel())
    _cap_logits(as_array(logits), np.float32(cap), np.float32(2.0 / cap) * LOG2_E)


@kernel
def _cap_logits(logits: Any, cap: Any, factor: Any) -> None:
    for row in numba.prange(logits.shape[0]):
        _cap_row(logits[row], cap, factor)


@inlined()
def _cap_row(logits: Any, cap: Any, factor: Any) -> None:
    """Cap a row, with tanh x = 1 - 2 / (e^2x + 1)."""
    for i in range(logits.shape[0]):
        power = exp2(to_float32(logits[i]) * factor)
        logits[i] = from_float32(cap * (_ONE - _TWO / (power + _ONE)), logits)


_WORD = 32  # tokens


def mask_logits(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
    """Write -inf to tokens outside a row's bitmask; see the reference."""
    choose_threads(len(rows) * logits.shape[1])
    _mask_logits(as_array(logits), as_array(rows), as_array(bitmask.contiguous()))


@kernel
def _mask_logits(logits: Any, rows: Any, bitmask: Any) -> None:
    for r in numba.prange(rows.shape[0]):
        _mask_row(logits[rows[r]], bitmask[r])


@inlined()
def _mask_row(logits: Any, words: Any) -> None:
    forbidden = from_float32(np.float32(-np.inf), logits)
    for w in range(words.shape[0]):
        if words[w] != -1:  # most words allow all tokens
            start, end = w * _WORD, min((w + 1) * _WORD, logits.shape[0])
            _mask_word(logits[start:end], words[w], forbidden)


@inlined()
def _mask_word(logits: Any, word: Any, forbidden: Any) -> None:
    if word == 0:
        logits[:] = forbidden
        return
    for i in range(logits.shape[0]):
        logits[i] = logits[i] if (word >> i) & 1 else forbidden


def count_tokens(
    token_ids: Tensor, counts: Tensor, num_ids: Tensor, places: Tensor, tokens: Tensor
) -> None:
    """Increment the counts of `tokens` in their table rows; see the reference."""
    choose_threads(len(tokens) * token_ids.shape[1])
    _count_tokens(*map(as_array, (token_ids, counts, num_ids, places, tokens)))


@kernel
def _count_tokens(token_ids: Any, counts: Any, num_ids: Any, places: Any, tokens: Any) -> None:
    for i in numba.prange(places.shape[0]):
        place, token = places[i], tokens[i]
        line, num_used, column = token_ids[place], num_ids[place], 0
        while column < num_used and line[column] != token:
            column += 1
        if column == num_used:
            line[column] = token
            counts[place, column] = 0
            num_ids[place] = num_used + 1
        counts[place, column] += 1


def penalize(
    logits: Tensor,
    rows: Tensor,
    places: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    num_ids: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Apply penalties to the logits of the tokens in a table, in place; see the reference."""
    choose_threads(len(rows) * token_ids.shape[1])
    table = (token_ids, counts, num_ids)
    _penalize(*map(as_array, (logits, rows, places, *table, repetition, presence, frequency)))


@kernel
def _penalize(
    logits: Any,
    rows: Any,
    places: Any,
    token_ids: Any,
    counts: Any,
    num_ids: Any,
    repetition: Any,
    presence: Any,
    frequency: Any,
) -> None:
    for i in numba.prange(rows.shape[0]):
        place = places[i]
        _penalize_row(
            logits[rows[i]],
            token_ids[place, : num_ids[place]],
            counts[place],
            repetition[place],
            presence[place],
            frequency[place],
        )


@inlined(fastmath=EXACT)
def _penalize_row(
    logits: Any, token_ids: Any, counts: Any, repetition: Any, presence: Any, frequency: Any
) -> None:
    for i in range(token_ids.shape[0]):
        token, count = token_ids[i], np.float32(counts[i])
        value = logits[token]
        value = value / repetition if value > 0 else value * repetition
        value -= frequency * count
        value -= presence if count > 0 else np.float32(0.0)
        logits[token] = value


_BLOCK = 1024  # tokens with a float32 sum; sums of blocks are added in float64


def token_logprobs(logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
    """Return log-probabilities and ranks of tokens; see the reference."""
    found = TokenLogprobs(
        torch.empty(len(ids), dtype=torch.float32),
        torch.empty(len(ids), dtype=torch.int64),
        torch.empty(len(ids), num_top, dtype=torch.int64),
        torch.empty(len(ids), num_top, dtype=torch.float32),
    )
    choose_threads(len(ids) * logits.shape[1])
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


@inlined()
def _find_top(x: Any, top_ids: Any, top: Any) -> Any:
    """Write the largest values of a row and their ids, descending; return the maximum or NaN."""
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


@inlined()
def _sum_exp(x: Any, peak: Any) -> Any:
    """Return the sum of `exp(x - peak)` as float64."""
    total = np.float64(0.0)
    for start in range(0, x.shape[0], _BLOCK):
        total += np.float64(_sum_exp_block(x[start : min(start + _BLOCK, x.shape[0])], peak))
    return total


@inlined(fastmath=FAST_SUMS)
def _sum_exp_block(x: Any, peak: Any) -> Any:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += exp2((to_float32(x[i]) - peak) * LOG2_E)
    return total


@inlined()
def _num_at_least(x: Any, chosen: Any) -> Any:
    count = np.int32(0)
    for i in range(x.shape[0]):
        count += np.int32(to_float32(x[i]) >= chosen)
    return count
