"""Decode attention: single queries over the blocks of their tables.

One task is one (query row, kv head): it reads each key and each value once for the whole group of
query heads, a partition at a time. Three measures keep it at the speed of memory: partial results
lie in small local arrays (LLVM cannot know that the output does not overlap the cache: a factor
of two), the next block is prefetched (a factor of 1.3 to 1.9), and values are added four at a time.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, PrefixState, Softmax
from pagedrun.kernels.cpu.attention.decode_products import (
    add_floats,
    add_integers,
    integers_for,
    score_floats,
    score_integers,
)
from pagedrun.kernels.cpu.attention.inputs import SoftmaxNumbers, State
from pagedrun.kernels.cpu.attention.partitions import factors_for, prefetch_factors, read_factors
from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.jit import FAST_SUMS, choose_threads, inlined, kernel, num_threads
from pagedrun.kernels.cpu.kv_cache import scale_arrays
from pagedrun.kernels.cpu.simd.arrays import next_task, share_tasks
from pagedrun.kernels.cpu.simd.lanes import LOG2_E, exp2, largest
from pagedrun.kernels.partition import PARTITION_TOKENS


def decode_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    rows: DecodeInputs,
    softmax: Softmax,
    window: int | None,
    prefix: PrefixState | None = None,
) -> Tensor:
    """Attend from single query rows over the blocks of their tables; see the reference."""
    assert layer.keys.is_contiguous(), "a copy would cost too much"
    assert layer.values.is_contiguous(), "a copy would cost too much"
    assert prefix is None or window is None, "a window may end inside a prefix"
    out = torch.empty(q.shape, dtype=q.dtype)
    choose_threads(q.numel() * block_tables.shape[1] * layer.block_size)
    _decode(
        num_threads(),
        as_array(q.contiguous()),
        as_array(layer.keys),
        as_array(layer.values),
        as_array(block_tables.contiguous()),
        as_array(rows.table_rows),
        as_array(rows.context_lens),
        *scale_arrays(layer.scales),
        *SoftmaxNumbers.of(softmax),
        window or 0,
        np.empty(0, np.int32) if prefix is None else as_array(prefix.num_partitions),
        *State.of(prefix),
        as_array(out),
    )
    return out


@kernel
def _decode(
    num_threads: Any,
    q: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    table_rows: Any,
    context_lens: Any,
    key_scales: Any,
    value_scales: Any,
    scale: Any,
    softcap: Any,
    sinks: Any,
    window: Any,
    num_partitions: Any,
    max_scores: Any,
    sum_exps: Any,
    accs: Any,
    out: Any,
) -> None:
    num_kv_heads = key_cache.shape[1]
    tasks = share_tasks(num_threads, q.shape[0] * num_kv_heads)
    for thread in numba.prange(num_threads):
        while True:
            task = next_task(tasks, thread)
            if task < 0:
                break
            row, kv_head = task // num_kv_heads, task % num_kv_heads
            table = block_tables[table_rows[row]]
            last = context_lens[row]
            first = max(0, last - window) if window > 0 else 0
            group = q.shape[1] // num_kv_heads
            heads = slice(kv_head * group, (kv_head + 1) * group)
            if last == 0:
                out[row, heads] = 0
                continue
            acc = np.zeros((group, q.shape[2]), np.float32)
            # The largest score so far, in base 2, and the sum of weights relative to it.
            max_score = np.full(group, -np.inf, np.float32)
            sum_exp = np.zeros(group, np.float32)
            if num_partitions.shape[0] > 0:
                first = num_partitions[row] * PARTITION_TOKENS
                # Not `acc[:] = accs[row, heads]`: its check of shapes takes seconds to compile.
                for g in range(group):
                    max_score[g] = max_scores[row, heads][g]
                    sum_exp[g] = sum_exps[row, heads][g]
                    for d in range(acc.shape[1]):
                        acc[g, d] = accs[row, heads][g, d]
            _attend(
                q[row, heads],
                key_cache,
                value_cache,
                key_scales,
                value_scales,
                table,
                kv_head,
                first,
                last,
                scale,
                softcap,
                acc,
                max_score,
                sum_exp,
            )
            if sinks.shape[0] > 0:
                for g in range(group):
                    sum_exp[g] += exp2(sinks[heads][g] - max_score[g])
            _write(acc, sum_exp, out[row, heads])


@inlined()
def _attend(
    q: Any,
    key_cache: Any,
    value_cache: Any,
    key_scales: Any,
    value_scales: Any,
    table: Any,
    kv_head: Any,
    first: Any,
    last: Any,
    scale: Any,
    softcap: Any,
    acc: Any,
    max_scores: Any,
    sum_exps: Any,
) -> None:
    """Merge positions first .. last - 1 into the state of one row's query heads [group, dim]."""
    group, head_dim = q.shape
    query = np.empty((group, head_dim), np.float32)
    for g in range(group):
        for d in range(head_dim):
            query[g, d] = to_float32(q[g, d])
    weights = np.empty((group, PARTITION_TOKENS), np.float32)
    partial = np.empty((group, head_dim), np.float32)
    part_max_scores, part_sum_exps = np.empty(group, np.float32), np.empty(group, np.float32)
    key_factors, value_factors = factors_for(key_cache), factors_for(value_cache)
    integers = integers_for(q, query, key_cache)

    for start in range(first - first % PARTITION_TOKENS, last, PARTITION_TOKENS):
        low, high = max(start, first), min(start + PARTITION_TOKENS, last)
        following = min(start + 2 * PARTITION_TOKENS, last)
        prefetch_factors(key_scales, table, kv_head, start + PARTITION_TOKENS, following)
        prefetch_factors(value_scales, table, kv_head, start + PARTITION_TOKENS, following)
        _score(query, integers, key_cache, table, kv_head, low, high, last, weights)
        read_factors(key_scales, table, kv_head, low, high, key_factors)
        _multiply(weights, key_factors)
        for g in range(group):
            factor = scale
            if softcap > 0:
                cap_scores(weights[g, : high - low], scale, softcap)
                factor = LOG2_E
            part_max_scores[g], part_sum_exps[g] = softmax_weights(weights[g, : high - low], factor)
        read_factors(value_scales, table, kv_head, low, high, value_factors)
        _multiply(weights, value_factors)
        _add_values(weights, integers, value_cache, table, kv_head, low, high, last, partial)
        for g in range(group):
            max_score = max(max_scores[g], part_max_scores[g])
            old, new = exp2(max_scores[g] - max_score), exp2(part_max_scores[g] - max_score)
            max_scores[g] = max_score
            sum_exps[g] = sum_exps[g] * old + part_sum_exps[g] * new
            for d in range(head_dim):
                acc[g, d] = acc[g, d] * old + partial[g, d] * new


@inlined()
def _multiply(weights: Any, factors: Any) -> None:
    """Multiply column i by the factor of token i; None: no factors."""
    if factors is None:
        return
    for g in range(weights.shape[0]):
        row = weights[g]
        for i in range(row.shape[0]):
            row[i] *= factors[i]


@inlined()
def _write(acc: Any, sum_exps: Any, out: Any) -> None:
    for g in range(acc.shape[0]):
        inverse = np.float32(1.0) / sum_exps[g]
        for d in range(acc.shape[1]):
            out[g, d] = from_float32(acc[g, d] * inverse, out)


@inlined()
def _score(
    query: Any,
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
    if integers is None:
        score_floats(query, key_cache, table, kv_head, low, high, last, scores)
    else:
        score_integers(integers, key_cache, table, kv_head, low, high, last, scores)


@inlined()
def _add_values(
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
    if integers is None:
        partial[:] = np.float32(0.0)
        add_floats(weights, value_cache, table, kv_head, low, high, last, partial)
    else:
        add_integers(weights, integers, value_cache, table, kv_head, low, high, last, partial)


@inlined(fastmath=FAST_SUMS)
def softmax_weights(scores: Any, scale: Any) -> Any:
    """Replace the scores of one row by weights relative to the largest score, in place.

    scores: [num_keys] float32, at least one. scale: float32 above 0, log2(e) included. Returns
    (max_score, sum_exp): the largest scaled score, in base 2, and the sum of the weights
    `2^(score * scale - max_score)`. A NaN score gives a NaN sum.
    """
    max_score = largest(scores) * scale
    sum_exp = np.float32(0.0)
    for i in range(scores.shape[0]):
        weight = exp2(scores[i] * scale - max_score)
        scores[i] = weight
        sum_exp += weight
    return max_score, sum_exp


@inlined()
def cap_scores(scores: Any, scale: Any, softcap: Any) -> None:
    """Replace scores [num_keys] float32 by `softcap * tanh(score * scale / softcap)`."""
    factor = scale / softcap
    for i in range(scores.shape[0]):
        scores[i] = softcap * np.tanh(scores[i] * factor)
