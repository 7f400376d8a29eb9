"""Softmax of a block of 32 rows over one partition, all rows at once: a row is a lane.

scores: [partition, 32] float32, so that what is done to a row is done lane by lane and nothing is
ever added across lanes. peaks, sums: [32] float32, the largest score so far (a power of two) and
the sum of weights relative to it.
"""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.attention.factors import scaled
from pagedrun.kernels.cpu.attention.operands import BLOCK_ROWS
from pagedrun.kernels.cpu.exp2 import HIGH, LOG2_E
from pagedrun.kernels.cpu.jit import EXACT, part
from pagedrun.kernels.cpu.simd.lanes import (
    any_less,
    exp2_lanes,
    fused,
    larger,
    load,
    smaller,
    splat,
    store,
    where_less,
)

_NOTHING = np.float32(-np.inf)
_ANYTHING = np.float32(-3.0e38)  # every score is above it
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


@part(fastmath=EXACT)
def mask(scores: Any, half: Any, lows: Any, highs: Any, first: Any, num_tokens: Any) -> None:
    """Set scores of tokens `first` on to -inf but where low <= token < high.

    lows, highs: [32] float32, relative to the beginning of the partition.
    """
    low, high, nothing = load(lows, half), load(highs, half), splat(_NOTHING)
    for token in range(first, num_tokens):
        place = token * BLOCK_ROWS + half
        number = splat(np.float32(token))
        seen = where_less(number, high, load(scores, place), nothing)
        store(scores, place, where_less(number, low, nothing, seen))


@part(fastmath=EXACT)
def cap(scores: Any, half: Any, num_tokens: Any, scale: Any, softcap: Any) -> None:
    """Turn scores into `softcap * tanh(score * scale / softcap)`; tanh x = 1 - 2 / (e^2x + 1)."""
    factor = splat(_TWO * LOG2_E * scale / softcap)
    one, two, limit = splat(_ONE), splat(_TWO), splat(softcap)
    for token in range(num_tokens):
        place = token * BLOCK_ROWS + half
        power = exp2_lanes(smaller(splat(HIGH), load(scores, place) * factor))
        store(scores, place, limit * (one - two / (power + one)))


@part(fastmath=EXACT)
def weigh(
    scores: Any,
    half: Any,
    num_tokens: Any,
    scale: Any,
    peaks: Any,
    sums: Any,
    totals: Any,
    factors: Any,
    weights: Any,
    power: Any,
    store_weights: Any,
) -> None:
    """Turn scores into weights relative to the largest so far, and bring the state up to date.

    half: 0 for the first sixteen rows, 16 for the others. num_tokens: an even number. scale:
    log2(e) included. totals: [dim, 32] float32, made relative to the new largest score. factors:
    those of the values, by which weights are multiplied when they are kept.
    `power` is 2^x, and `store_weights(weights, token, half, even, odd)` keeps those of two tokens.
    A NaN score gives a NaN sum.
    """
    old = load(peaks, half)
    best, other = splat(_NOTHING), splat(_NOTHING)
    for token in range(0, num_tokens, 2):
        best = larger(load(scores, token * BLOCK_ROWS + half), best)
        other = larger(load(scores, (token + 1) * BLOCK_ROWS + half), other)
    factor = splat(scale)
    peak = larger(larger(best, other) * factor, old)
    store(peaks, half, peak)
    # A row that has seen no key: any finite number will do in place of -inf.
    base = where_less(peak, splat(_ANYTHING), splat(_ZERO), peak)
    minus = splat(_ZERO) - base
    even_sum, odd_sum = splat(_ZERO), splat(_ZERO)
    for token in range(0, num_tokens, 2):
        even = power(fused(load(scores, token * BLOCK_ROWS + half), factor, minus))
        odd = power(fused(load(scores, (token + 1) * BLOCK_ROWS + half), factor, minus))
        even_sum, odd_sum = even_sum + even, odd_sum + odd
        even, odd = scaled(even, factors, token), scaled(odd, factors, token + 1)
        store_weights(weights, token, half, even, odd)
    fading = exp2_lanes(old - base)
    store(sums, half, fused(load(sums, half), fading, even_sum + odd_sum))
    if any_less(fading, splat(_ONE)):
        for d in range(totals.shape[0] // BLOCK_ROWS):
            place = d * BLOCK_ROWS + half
            store(totals, place, load(totals, place) * fading)


@part(fastmath=EXACT)
def add_sinks(sinks: Any, half: Any, peaks: Any, sums: Any) -> None:
    """Add what a score [32] without a value weighs to the sums; it is a power of two."""
    power = smaller(splat(HIGH), load(sinks, half) - load(peaks, half))
    store(sums, half, load(sums, half) + exp2_lanes(power))


@part(fastmath=EXACT)
def divide(totals: Any, half: Any, sums: Any) -> None:
    """Turn totals [dim * 32] into results.

    A row with any number that is not finite becomes NaN, wherever that came from; -0 becomes 0, so
    that no bit tells how many zeros were added.
    """
    inverse, zero = splat(_ONE) / load(sums, half), splat(_ZERO)
    spoilt = zero
    for d in range(totals.shape[0] // BLOCK_ROWS):
        spoilt = fused(load(totals, d * BLOCK_ROWS + half), zero, spoilt)
    for d in range(totals.shape[0] // BLOCK_ROWS):
        place = d * BLOCK_ROWS + half
        store(totals, place, fused(load(totals, place), inverse, spoilt))
