"""Sampling of the next token; the rule is in reference/sampling.py.

One task is one row. The vocabulary is processed in blocks with a known maximum, so that filters and
noise skip most blocks: a token whose value lies further below the best score so far than the
largest noise needs no random number. The threshold of top-k and top-p is found by quickselect,
without sorting the vocabulary.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.jit import FAST_SUMS, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, exp2, largest
from pagedrun.kernels.reference.sampling import GREEDY_BELOW

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
    """Sample one token for each row of logits; see the reference."""
    ids = torch.empty(len(logits), dtype=torch.int64)
    choose_threads(logits.numel())
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


@inlined()
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


@inlined()
def _scale(logits: Any, temperature: Any, z: Any, block_peaks: Any) -> Any:
    """Write z and the maximum of each block; return True if there is a NaN."""
    num_nan = 0
    for block in range(block_peaks.shape[0]):
        start, end = block * _BLOCK, min((block + 1) * _BLOCK, z.shape[0])
        num_nan += _scale_block(logits[start:end], temperature, z[start:end])
        block_peaks[block] = largest(z[start:end])
    return num_nan > 0


@inlined()
def _scale_block(logits: Any, temperature: Any, z: Any) -> Any:
    num_nan = np.int32(0)
    for i in range(z.shape[0]):
        value = to_float32(logits[i]) / temperature
        z[i] = value
        num_nan += np.int32(value != value)
    return num_nan


@inlined()
def _draw(z: Any, block_peaks: Any, best_block: Any, low: Any, stream: Any, key: Any) -> Any:
    """Return the id of the largest z plus noise among those with z >= low."""
    words = np.empty((4, _BLOCK // 4), np.uint32)
    best, best_id = -np.inf, -1
    # The block with the largest value first: its score excludes most others.
    best, best_id = _draw_block(z, best_block, low, stream, key, words, best, best_id)
    for block in range(block_peaks.shape[0]):
        peak = block_peaks[block]
        if peak >= low and peak + _MAX_NOISE >= best and block != best_block:
            best, best_id = _draw_block(z, block, low, stream, key, words, best, best_id)
    return best_id


@inlined()
def _draw_block(
    z: Any, block: Any, low: Any, stream: Any, key: Any, words: Any, best: Any, best_id: Any
) -> Any:
    """Return (score, id) of the best of `best` and the tokens of one block."""
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


@inlined()
def _num_contenders(z: Any, low: Any, words: Any, best: Any) -> Any:
    """Return an upper bound of the number of tokens of a block that exceed `best`.

    With e = -log(u), a token wins if e < exp(z - best), and e is never below 1 - u.
    """
    count = 0
    for i in range(z.shape[0]):
        one_minus_u = np.float32(~words[i % 4, i // 4]) * np.float32(2.0**-32)
        bound = exp2((z[i] - best) * LOG2_E) * np.float32(1.001)
        count += (z[i] >= low) & (one_minus_u <= bound)
    return count


# Successive ranges of the search below the largest value, in nats: beyond 16 the weights of a whole
# vocabulary hardly add up to a hundredth.
_REACHES = (np.float32(4.0), np.float32(8.0), np.float32(16.0), np.float32(np.inf))


@inlined()
def filter_threshold(
    z: Any, block_peaks: Any, block_size: Any, peak: Any, low: Any, top_k: Any, top_p: Any
) -> Any:
    """Return the smallest z that passes top-k and top-p, by steps 3b and 3c of the sampling rule.

    z: [vocab_size] float32. block_peaks: the maximum of each `block_size` values. peak: the overall
    maximum. low: the threshold of min_p, more than -inf. top_k up to 0: off; top_p
    from 1: off.
    """
    mass = _mass(z, block_peaks, block_size, peak, low) if top_p < 1 and top_k <= 0 else 0.0
    values = np.empty(z.shape[0], np.float32)
    for reach in _REACHES:
        floor = max(low, peak - reach)
        count = _collect(z, block_peaks, block_size, floor, values)
        complete = floor == low
        threshold = low
        if top_k > 0:
            if count < top_k and not complete:
                continue
            if count > top_k:
                threshold = _select(values[:count], np.float64(top_k), peak, False)
            if top_p >= 1:
                return threshold
            count = _collect(z, block_peaks, block_size, max(threshold, floor), values)
            mass = _sum_weights(values[:count], peak, floor)
        elif _sum_weights(values[:count], peak, floor) < top_p * mass and not complete:
            continue
        return _select(values[:count], top_p * mass, peak, True)
    return low


@inlined()
def _collect(z: Any, block_peaks: Any, block_size: Any, floor: Any, values: Any) -> Any:
    """Collect the values of at least `floor`; return their number."""
    count = 0
    for block in range(block_peaks.shape[0]):
        if block_peaks[block] >= floor:
            for v in range(block * block_size, min((block + 1) * block_size, z.shape[0])):
                values[count] = z[v]
                count += z[v] >= floor
    return count


@inlined()
def _mass(z: Any, block_peaks: Any, block_size: Any, peak: Any, low: Any) -> Any:
    """Return the sum of the weights of the values of at least `low`."""
    total = np.float64(0.0)
    for block in range(block_peaks.shape[0]):
        if block_peaks[block] >= low:
            end = min((block + 1) * block_size, z.shape[0])
            total += _sum_weights(z[block * block_size : end], peak, low)
    return total


@inlined(fastmath=FAST_SUMS)
def _sum_weights(values: Any, peak: Any, low: Any) -> Any:
    total = np.float64(0.0)
    for i in range(values.shape[0]):
        weight = np.float64(exp2((values[i] - peak) * LOG2_E))
        total += weight if values[i] >= low else np.float64(0.0)
    return total


@inlined()
def _select(values: Any, target: Any, peak: Any, weighted: Any) -> Any:
    """Return the largest t for which the weight of values >= t is at least `target`.

    Quickselect, in place.

    The weight of a value is 1, or `exp(value - peak)` if `weighted`. If the total is less, by a
    rounding error, the smallest value is returned.
    """
    low, high = 0, values.shape[0]
    while high - low > 1:
        pivot = values[(low + high) // 2]
        # values[low:above] > pivot, values[above:i] == pivot, values[below:high] < pivot
        above, i, below = low, low, high
        weight_above, weight_equal = np.float64(0.0), np.float64(0.0)
        while i < below:
            value = values[i]
            weight = np.float64(exp2((value - peak) * LOG2_E)) if weighted else np.float64(1.0)
            if value > pivot:
                values[i], values[above] = values[above], value
                above += 1
                i += 1
                weight_above += weight
            elif value < pivot:
                below -= 1
                values[i], values[below] = values[below], value
            else:
                i += 1
                weight_equal += weight
        if weight_above >= target and above > low:
            high = above
        elif weight_above + weight_equal >= target or below == high:
            return pivot
        else:
            target -= weight_above + weight_equal
            low = below
    return values[low]


_FACTOR_0 = np.uint64(0xD2511F53)
_FACTOR_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint32(0x9E3779B9)
_WEYL_1 = np.uint32(0xBB67AE85)
_HIGH = np.uint64(32)


@inlined()
def philox4x32(first: Any, position: Any, row: Any, sample: Any, key: Any, words: Any) -> None:
    """Fill `words` with Philox4x32-10 of counters (first, position, row, sample), (first + 1, ...).

    key: uint32 pair. words: [4, num_counters] uint32, lane by lane: lane l of counter i goes to
    words[l, i].
    """
    for i in range(words.shape[1]):
        c0, c1, c2, c3 = np.uint32(first + np.uint32(i)), position, row, sample
        k0, k1 = key
        for _ in range(10):
            product0 = np.uint64(c0) * _FACTOR_0
            product1 = np.uint64(c2) * _FACTOR_1
            c0 = np.uint32(np.uint32(product1 >> _HIGH) ^ c1 ^ k0)
            c2 = np.uint32(np.uint32(product0 >> _HIGH) ^ c3 ^ k1)
            c1, c3 = np.uint32(product1), np.uint32(product0)
            k0, k1 = np.uint32(k0 + _WEYL_0), np.uint32(k1 + _WEYL_1)
        words[0, i], words[1, i], words[2, i], words[3, i] = c0, c1, c2, c3
