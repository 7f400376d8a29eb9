"""The choice of the next token; the choice rule is in reference/sample.py.

One task is one row. The vocabulary is walked in blocks whose largest value is known, so that the
filters and the noise touch only blocks that can matter: a token whose value lies further below
the best score so far than the noise can reach needs no random number.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread
from pagedrun.kernels.cpu.maximum import largest
from pagedrun.kernels.cpu.sampling.philox import philox4x32
from pagedrun.kernels.cpu.sampling.threshold import filter_threshold
from pagedrun.kernels.reference.sampling.sample import GREEDY_BELOW

_BLOCK = 256  # tokens; 64 counters of four random words
_GREEDY_BELOW = np.float32(GREEDY_BELOW)
_MAX_NOISE = np.float32(22.9)  # -log(-log(1 - 2^-33)) = 22.87
_WORD = np.int64(0xFFFFFFFF)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    row: Tensor,
    sample: Tensor,
    position: Tensor,
    *,
    filtered: bool = True,
) -> Tensor:
    """Choose one token for each row of logits; see the reference."""
    ids = torch.empty(len(logits), dtype=torch.int64)
    spread(logits.numel())
    _sample(
        as_array(logits.contiguous()),
        as_array(temperature),
        as_array(top_k),
        as_array(top_p),
        as_array(min_p),
        as_array(seed),
        as_array(row),
        as_array(sample),
        as_array(position),
        as_array(ids),
    )
    return ids


@kernel
def _sample(
    logits: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    min_p: Any,
    seed: Any,
    row: Any,
    sample: Any,
    position: Any,
    ids: Any,
) -> None:
    for r in numba.prange(logits.shape[0]):
        stream = (
            np.uint32(position[r] & _WORD),
            np.uint32(row[r] & _WORD),
            np.uint32(sample[r] & _WORD),
        )
        key = (np.uint32(seed[r] & _WORD), np.uint32((seed[r] >> 32) & _WORD))
        ids[r] = _choose(logits[r], temperature[r], top_k[r], top_p[r], min_p[r], stream, key)


@part()
def _choose(
    logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, stream: Any, key: Any
) -> Any:
    """Return the id for one row of logits."""
    greedy = temperature < _GREEDY_BELOW
    vocab_size = logits.shape[0]
    z = np.empty(vocab_size, np.float32)
    block_peaks = np.empty((vocab_size + _BLOCK - 1) // _BLOCK, np.float32)
    has_nan = _scale(logits, np.float32(1.0) if greedy else temperature, z, block_peaks)
    peak = largest(block_peaks)
    if has_nan or not np.isfinite(peak):
        return -1
    best_block = 0
    while block_peaks[best_block] < peak:
        best_block += 1
    if greedy:
        v = best_block * _BLOCK
        while z[v] < peak:
            v += 1
        return v
    low = peak + np.log(min_p) if min_p > 0 else -np.float32(np.finfo(np.float32).max)
    if top_k > 0 or top_p < 1:
        low = filter_threshold(z, block_peaks, _BLOCK, peak, low, top_k, top_p)
    return _draw(z, block_peaks, best_block, low, stream, key)


@part()
def _scale(logits: Any, temperature: Any, z: Any, block_peaks: Any) -> Any:
    """Write z and the largest of each block; return whether there is a NaN."""
    num_nan = 0
    for block in range(block_peaks.shape[0]):
        start, end = block * _BLOCK, min((block + 1) * _BLOCK, z.shape[0])
        num_nan += _scale_block(logits[start:end], temperature, z[start:end])
        block_peaks[block] = largest(z[start:end])
    return num_nan > 0


@part()
def _scale_block(logits: Any, temperature: Any, z: Any) -> Any:
    num_nan = np.int32(0)
    for i in range(z.shape[0]):
        value = to_float32(logits[i]) / temperature
        z[i] = value
        num_nan += np.int32(value != value)
    return num_nan


@part()
def _draw(z: Any, block_peaks: Any, best_block: Any, low: Any, stream: Any, key: Any) -> Any:
    """Return the id of the largest z plus noise among those with z >= low."""
    words = np.empty((4, _BLOCK // 4), np.uint32)
    best, best_id = -np.inf, -1
    # The block with the largest value first: its score lets most others be passed over.
    best, best_id = _draw_block(z, best_block, low, stream, key, words, best, best_id)
    for block in range(block_peaks.shape[0]):
        peak = block_peaks[block]
        if peak >= low and peak + _MAX_NOISE >= best and block != best_block:
            best, best_id = _draw_block(z, block, low, stream, key, words, best, best_id)
    return best_id


@part()
def _draw_block(
    z: Any, block: Any, low: Any, stream: Any, key: Any, words: Any, best: Any, best_id: Any
) -> Any:
    """Return (score, id) of the winner among `best` and the tokens of one block."""
    start = block * _BLOCK
    num_tokens = min(_BLOCK, z.shape[0] - start)
    philox4x32(np.uint32(start // 4), stream[0], stream[1], stream[2], key, words)
    if _num_contenders(z[start : start + num_tokens], low, words, np.float32(best)) == 0:
        return best, best_id
    for i in range(num_tokens):
        v = start + i
        if z[v] >= low and z[v] + _MAX_NOISE >= best:
            u = (np.float64(words[i % 4, i // 4]) + 0.5) / 4294967296.0
            score = np.float64(z[v]) - np.log(-np.log(u))
            if score > best or (score == best and v < best_id):
                best, best_id = score, v
    return best, best_id


@part()
def _num_contenders(z: Any, low: Any, words: Any, best: Any) -> Any:
    """Return how many tokens of a block may beat `best`; never too few.

    With e = -log(u), a token wins if e < exp(z - best), and e is never below 1 - u.
    """
    count = 0
    for i in range(z.shape[0]):
        one_minus_u = np.float32(~words[i % 4, i // 4]) * np.float32(2.0**-32)
        bound = exp2((z[i] - best) * LOG2_E) * np.float32(1.001)
        count += (z[i] >= low) & (one_minus_u <= bound)
    return count
