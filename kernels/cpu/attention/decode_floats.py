"""The two products of decode attention in float32: keys and values of any format.

Four keys or values at a time, two query heads for each: what is read and widened once is used
twice, and the sums over lanes of four keys are made together. How many are taken together changes
no bit.
"""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import EXACT, part
from pagedrun.kernels.cpu.simd.lanes import (
    NUM_LANES,
    fused,
    load,
    splat,
    store,
    store_sums,
    sum_of_lanes,
)
from pagedrun.kernels.cpu.simd.prefetch import prefetch_row
from pagedrun.kernels.cpu.simd.words import read_lanes


@part()
def score_floats(
    query: Any,
    key_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    scores: Any,
) -> None:
    """Write the products of the queries with keys low .. high - 1 to the columns from 0 on."""
    block_size = key_cache.shape[2]
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run = min(block_size - offset, high - position)
        keys = key_cache[block, kv_head, offset : offset + run]
        fours = run - run % 4
        for i in range(0, fours, 4):
            for ahead in range(offset + i, offset + i + 4):
                prefetch_row(key_cache, next_block, kv_head, ahead)
            _multiply_four(query, keys, i, position - low + i, scores)
        for i in range(fours, run):
            _multiply_one(query, keys[i], position - low + i, scores)
        position += run


@part(fastmath=EXACT)
def _multiply_four(query: Any, keys: Any, first: Any, column: Any, scores: Any) -> None:
    """Write the products of four keys [run, head_dim] with the queries.

    Two by two: four sums are kept meanwhile, more would not fit the registers of AVX2.
    """
    group, head_dim = query.shape
    whole = head_dim - head_dim % NUM_LANES
    width, nothing = scores.shape[1], np.float32(0.0)
    for g in range(0, group - 1, 2):
        q, r, place = g * head_dim, (g + 1) * head_dim, g * width + column
        for i in range(0, 4, 2):
            one, two = (first + i) * head_dim, (first + i + 1) * head_dim
            s0, s1, t0, t1 = splat(nothing), splat(nothing), splat(nothing), splat(nothing)
            for d in range(0, whole, NUM_LANES):
                k0, k1 = read_lanes(keys, one + d), read_lanes(keys, two + d)
                numbers, others = load(query, q + d), load(query, r + d)
                s0, s1 = fused(numbers, k0, s0), fused(numbers, k1, s1)
                t0, t1 = fused(others, k0, t0), fused(others, k1, t1)
            store_sums(scores, place + i, s0, s1, place + width + i, t0, t1)
    if group % 2:
        q, place, start = (group - 1) * head_dim, (group - 1) * width + column, first * head_dim
        s0, s1, s2, s3 = splat(nothing), splat(nothing), splat(nothing), splat(nothing)
        for d in range(0, whole, NUM_LANES):
            numbers, key = load(query, q + d), start + d
            s0 = fused(numbers, read_lanes(keys, key), s0)
            s1 = fused(numbers, read_lanes(keys, key + head_dim), s1)
            s2 = fused(numbers, read_lanes(keys, key + 2 * head_dim), s2)
            s3 = fused(numbers, read_lanes(keys, key + 3 * head_dim), s3)
        store_sums(scores, place, s0, s1, place + 2, s2, s3)
    for i in range(4):
        _add_tail(query, keys[first + i], whole, column + i, scores)


@part(fastmath=EXACT)
def _multiply_one(query: Any, key: Any, column: Any, scores: Any) -> None:
    """Write the products of one key with the queries: the bits of `_multiply_four`."""
    group, head_dim = query.shape
    whole = head_dim - head_dim % NUM_LANES
    for g in range(group):
        total = splat(np.float32(0.0))
        for d in range(0, whole, NUM_LANES):
            total = fused(load(query, g * head_dim + d), read_lanes(key, d), total)
        scores[g, column] = sum_of_lanes(total)
    _add_tail(query, key, whole, column, scores)


@part(fastmath=EXACT)
def _add_tail(query: Any, key: Any, start: Any, column: Any, scores: Any) -> None:
    """Add the products of what is behind the last whole lanes."""
    for d in range(start, query.shape[1]):
        number = to_float32(key[d])
        for g in range(query.shape[0]):
            scores[g, column] += query[g, d] * number


@part()
def add_floats(
    weights: Any,
    value_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    partial: Any,
) -> None:
    """Add weight times value of low .. high - 1 to `partial`, in ascending order of position."""
    block_size = value_cache.shape[2]
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run = min(block_size - offset, high - position)
        fours = run - run % 4
        for i in range(0, fours, 4):
            for ahead in range(offset + i, offset + i + 4):
                prefetch_row(value_cache, next_block, kv_head, ahead)
            values = value_cache[block, kv_head, offset + i : offset + i + 4]
            _add_four(weights, position - low + i, values, partial)
        for i in range(fours, run):
            value = value_cache[block, kv_head, offset + i]
            _add_one(weights, position - low + i, value, partial)
        position += run


@part(fastmath=EXACT)
def _add_four(weights: Any, column: Any, values: Any, partial: Any) -> None:
    """Add four values [4, head_dim] times their weights, for two query heads at a time."""
    group, head_dim = partial.shape
    whole = head_dim - head_dim % NUM_LANES
    for g in range(0, group, 2):
        other = min(g + 1, group - 1)  # the last one alone is added once, and written twice
        a0, a1 = splat(weights[g, column]), splat(weights[g, column + 1])
        a2, a3 = splat(weights[g, column + 2]), splat(weights[g, column + 3])
        b0, b1 = splat(weights[other, column]), splat(weights[other, column + 1])
        b2, b3 = splat(weights[other, column + 2]), splat(weights[other, column + 3])
        for d in range(0, whole, NUM_LANES):
            v0, v1 = read_lanes(values, d), read_lanes(values, head_dim + d)
            v2, v3 = read_lanes(values, 2 * head_dim + d), read_lanes(values, 3 * head_dim + d)
            total = load(partial, g * head_dim + d)
            second = load(partial, other * head_dim + d)
            total = fused(a3, v3, fused(a2, v2, fused(a1, v1, fused(a0, v0, total))))
            second = fused(b3, v3, fused(b2, v2, fused(b1, v1, fused(b0, v0, second))))
            store(partial, g * head_dim + d, total)
            store(partial, other * head_dim + d, second)
    for g in range(group):
        for i in range(4):
            for d in range(whole, head_dim):
                partial[g, d] += weights[g, column + i] * to_float32(values[i, d])


@part(fastmath=EXACT)
def _add_one(weights: Any, column: Any, value: Any, partial: Any) -> None:
    """Add one value times its weights: the bits of `_add_four`."""
    group, head_dim = partial.shape
    whole = head_dim - head_dim % NUM_LANES
    for g in range(group):
        weight = weights[g, column]
        for d in range(0, whole, NUM_LANES):
            place = g * head_dim + d
            total = fused(splat(weight), read_lanes(value, d), load(partial, place))
            store(partial, place, total)
        for d in range(whole, head_dim):
            partial[g, d] += weight * to_float32(value[d])
