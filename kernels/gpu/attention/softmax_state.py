"""The softmax so far: what attention over some keys leaves behind, to be merged with more.

A state is (peak, mass, total): the largest score, a power of two; the sum of `2^(score - peak)`;
and the sum of values with these weights. All float32. The arithmetic is written out to the last
operation (`fma` where two fuse; launches turn other fusion off), so that two kernels that merge the
same states in the same order get the same bytes.
"""

from typing import Any

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def empty_state(NUM_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr) -> Any:
    """Return the state of NUM_ROWS rows that have seen no key."""
    peak = tl.full((NUM_ROWS,), float("-inf"), tl.float32)
    mass = tl.zeros((NUM_ROWS,), tl.float32)
    return peak, mass, tl.zeros((NUM_ROWS, HEAD_DIM), tl.float32)


@triton.jit
def merge_states(peak, mass, total, next_peak, next_mass, next_total) -> Any:
    """Return the state over the keys of both; not both may be empty.

    peaks and masses: [num_rows], totals: [num_rows, head_dim]. An empty state merged with what this
    returns gives the same bytes again: no total is a negative zero.
    """
    joint = tl.maximum(peak, next_peak)
    old, new = tl.exp2(peak - joint), tl.exp2(next_peak - joint)
    mass = tl.fma(mass, old, next_mass * new)
    return joint, mass, tl.fma(total, old[:, None], next_total * new[:, None]) + 0.0


@triton.jit
def add_sinks(peak, mass, sinks) -> Any:
    """Return the mass with that of one more score for each row, [num_rows], without a value."""
    return mass + tl.exp2(sinks * 1.4426950408889634 - peak)  # log2(e)


@triton.jit
def bend_scores(scores, scale, softcap) -> Any:
    """Return `softcap * tanh(scores * scale / softcap) * log2(e)`.

    tanh by a power of two: 1 - 2 / (1 + e^2x), which tends to -1 and 1 and keeps NaN.
    """
    # 1.4427 is log2(e), written twice since a kernel reads no module's variables.
    powers = tl.exp2(scores * (scale / softcap * (2 * 1.4426950408889634)))
    return (1.0 - 2.0 / (1.0 + powers)) * (softcap * 1.4426950408889634)


@triton.jit
def weigh_scores(scores, peak, scale) -> Any:
    """Return (peak, weights, factor): scores [num_rows, num_keys] against the largest so far.

    `scale` turns scores into powers of two; it is above 0. Weights are `2^(score * scale - peak)`
    with the new peak, and `factor` is what the old mass and total are to be multiplied by.
    """
    joint = tl.maximum(peak, tl.max(scores, axis=1) * scale)
    # One fused operation for each score, instead of a product and a difference.
    weights = tl.exp2(tl.fma(scores, scale, -joint[:, None]))
    return joint, weights, tl.exp2(peak - joint)
