"""The two products of decode attention with int8 codes, in integers.

Queries, and the weights of a partition, are rounded to 16 bits with a factor each: finer than
bfloat16 for all but numbers that hardly count, at a third of the instructions of float32. Sums of
int16 times int8 are exact, in any order and on any processor.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.kernels.cpu.cache.quantize import quantize
from pagedrun.kernels.cpu.jit import part
from pagedrun.kernels.cpu.simd.int8_sums import STEP, add_value_sums, key_sums
from pagedrun.kernels.cpu.simd.prefetch import prefetch_row

_KEYS = 8  # at a time
_eight_keys, _one_key = key_sums(_KEYS), key_sums(1)


class Integers(NamedTuple):
    """Memory of one row's query heads.

    queries: [group, head_dim] int16, with `factors` [group] float32. weights: [group, partition]
    int16. scores: [group, partition] int32. totals: [group, head_dim] int32.
    """

    queries: Any
    factors: Any
    weights: Any
    scores: Any
    totals: Any


def integers_for(q: Any, query: Any, cache: Any) -> Any:
    """Inside kernels: the queries [group, head_dim] as integers, None where floats multiply.

    q: the array that `query`, in float32, was read from. bfloat16 loses nothing to speak of by 16
    bits; float32 would.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(integers_for, strict=False)
def _overload_integers_for(q: Any, query: Any, cache: Any) -> Any:
    if q.dtype == types.uint16 and cache.dtype == types.int8:
        return lambda q, query, cache: _rounded(query)
    return lambda q, query, cache: None


@part()
def _rounded(query: Any) -> Any:
    group, head_dim = query.shape
    queries, factors = np.empty((group, head_dim), np.int16), np.empty(group, np.float32)
    for g in range(group):
        factors[g] = quantize(query[g], queries[g])
    return Integers(
        queries,
        factors,
        np.empty((group, PARTITION_TOKENS), np.int16),
        np.empty((group, PARTITION_TOKENS), np.int32),
        np.empty((group, head_dim), np.int32),
    )


@part()
def score_integers(
    integers: Any,
    key_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    scores: Any,
) -> None:
    """Write the products of the queries with keys low .. high - 1 to the columns from 0 on."""
    queries, factors, _, sums, _ = integers
    group, head_dim = queries.shape
    block_size, num_steps = key_cache.shape[2], head_dim // STEP
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run, column = min(block_size - offset, high - position), position - low
        keys = key_cache[block, kv_head, offset : offset + run]
        eights = run - run % _KEYS
        for i in range(run):
            prefetch_row(key_cache, next_block, kv_head, offset + i)
        for g in range(0, group, 2):
            other = min(g + 1, group - 1)
            one, two = g * PARTITION_TOKENS + column, other * PARTITION_TOKENS + column
            query, second = g * head_dim, other * head_dim
            for i in range(0, eights, _KEYS):
                _eight_keys(
                    queries, query, second, keys, i * head_dim, head_dim, num_steps,
                    sums, one + i, two + i,
                )  # fmt: skip
            for i in range(eights, run):
                _one_key(
                    queries, query, second, keys, i * head_dim, head_dim, num_steps,
                    sums, one + i, two + i,
                )  # fmt: skip
        for d in range(num_steps * STEP, head_dim):
            for g in range(group):
                for i in range(run):
                    sums[g, column + i] += np.int32(queries[g, d]) * np.int32(keys[i, d])
        position += run
    for g in range(group):
        row, total = scores[g], sums[g]
        for i in range(high - low):
            row[i] = np.float32(total[i]) * factors[g]


@part()
def add_integers(
    weights: Any,
    integers: Any,
    value_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    partial: Any,
) -> None:
    """Write the sum of weight times value of low .. high - 1 to `partial`."""
    _, _, rounded, _, sums = integers
    group, head_dim = sums.shape
    block_size, whole = value_cache.shape[2], head_dim // STEP * STEP
    factors = np.empty(group, np.float32)
    for g in range(group):
        factors[g] = quantize(weights[g, : high - low], rounded[g, : high - low])
        for d in range(head_dim):
            sums[g, d] = 0
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run, column = min(block_size - offset, high - position), position - low
        values = value_cache[block, kv_head, offset : offset + run]
        for i in range(run):
            prefetch_row(value_cache, next_block, kv_head, offset + i)
        for g in range(0, group, 2):
            other = min(g + 1, group - 1)
            one, two = g * PARTITION_TOKENS + column, other * PARTITION_TOKENS + column
            for d in range(0, whole, STEP):
                add_value_sums(
                    rounded, one, two, values, d, head_dim, run // 2,
                    sums, g * head_dim + d, other * head_dim + d,
                )  # fmt: skip
        for g in range(group):
            if run % 2:
                weight = np.int32(rounded[g, column + run - 1])
                for d in range(whole):
                    sums[g, d] += weight * np.int32(values[run - 1, d])
            for d in range(whole, head_dim):
                for i in range(run):
                    sums[g, d] += np.int32(rounded[g, column + i]) * np.int32(values[i, d])
        position += run
    for g in range(group):
        row, total = partial[g], sums[g]
        for d in range(head_dim):
            row[d] = np.float32(total[d]) * factors[g]
