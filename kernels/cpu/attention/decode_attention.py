"""Attention of single queries, read straight out of the blocks.

One task is one (query row, kv head): it reads each key and each value once for the whole group of
query heads, a partition at a time. Three habits keep it at the speed of memory: partial results
live in small local arrays (LLVM cannot know that the output does not overlap the cache: a factor
of two), the block after the one in hand is prefetched (a factor of 1.3 to 1.9), and values are
added four at a time.
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
from pagedrun.kernels.cpu.jit import REORDERED, kernel, part, spread
from pagedrun.kernels.cpu.kv_cache import scale_arrays
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
    spread(q.numel() * block_tables.shape[1] * layer.block_size)
    _decode(
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
    peaks: Any,
    masses: Any,
    totals: Any,
    out: Any,
) -> None:
    num_kv_heads = key_cache.shape[1]
    for task in numba.prange(q.shape[0] * num_kv_heads):
        row, kv_head = task // num_kv_heads, task % num_kv_heads
        table = block_tables[table_rows[row]]
        last = context_lens[row]
        first = max(0, last - window) if window > 0 else 0
        group = q.shape[1] // num_kv_heads
        heads = slice(kv_head * group, (kv_head + 1) * group)
        if last == 0:
            out[row, heads] = 0
            continue
        total = np.zeros((group, q.shape[2]), np.float32)
        peak = np.full(group, -np.inf, np.float32)  # the largest score so far, a power of two
        mass = np.zeros(group, np.float32)  # the sum of weights relative to it
        if num_partitions.shape[0] > 0:
            first = num_partitions[row] * PARTITION_TOKENS
            # Not `total[:] = totals[row, heads]`: its check of shapes takes seconds to compile.
            for g in range(group):
                peak[g], mass[g] = peaks[row, heads][g], masses[row, heads][g]
                for d in range(total.shape[1]):
                    total[g, d] = totals[row, heads][g, d]
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
            total,
            peak,
            mass,
        )
        if sinks.shape[0] > 0:
            for g in range(group):
                mass[g] += exp2(sinks[heads][g] - peak[g])
        _write(total, mass, out[row, heads])


@part()
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
    total: Any,
    peaks: Any,
    masses: Any,
) -> None:
    """Merge positions first .. last - 1 into the state of one row's query heads [group, dim]."""
    group, head_dim = q.shape
    query = np.empty((group, head_dim), np.float32)
    for g in range(group):
        for d in range(head_dim):
            query[g, d] = to_float32(q[g, d])
    weights = np.empty((group, PARTITION_TOKENS), np.float32)
    partial = np.empty((group, head_dim), np.float32)
    part_peaks, part_masses = np.empty(group, np.float32), np.empty(group, np.float32)
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
            part_peaks[g], part_masses[g] = softmax_weights(weights[g, : high - low], factor)
        read_factors(value_scales, table, kv_head, low, high, value_factors)
        _multiply(weights, value_factors)
        _add_values(weights, integers, value_cache, table, kv_head, low, high, last, partial)
        for g in range(group):
            peak = max(peaks[g], part_peaks[g])
            old, new = exp2(peaks[g] - peak), exp2(part_peaks[g] - peak)
            peaks[g] = peak
            masses[g] = masses[g] * old + part_masses[g] * new
            for d in range(head_dim):
                total[g, d] = total[g, d] * old + partial[g, d] * new


@part()
def _multiply(weights: Any, factors: Any) -> None:
    """Multiply column i by the factor of token i, if there are factors."""
    if factors is None:
        return
    for g in range(weights.shape[0]):
        row = weights[g]
        for i in range(row.shape[0]):
            row[i] *= factors[i]


@part()
def _write(total: Any, masses: Any, out: Any) -> None:
    for g in range(total.shape[0]):
        inverse = np.float32(1.0) / masses[g]
        for d in range(total.shape[1]):
            out[g, d] = from_float32(total[g, d] * inverse, out)


@part()
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


@part()
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


@part(fastmath=REORDERED)
def softmax_weights(scores: Any, scale: Any) -> Any:
    """Turn the scores of one row into weights relative to the largest, in place.

    scores: [num_keys] float32, at least one. scale: float32 above 0, log2(e) included. Returns
    (peak, mass): the largest scaled score, a power of two, and the sum of the weights
    `2^(score * scale - peak)`. A NaN score gives a NaN sum.
    """
    peak = largest(scores) * scale
    mass = np.float32(0.0)
    for i in range(scores.shape[0]):
        weight = exp2(scores[i] * scale - peak)
        scores[i] = weight
        mass += weight
    return peak, mass


@part()
def cap_scores(scores: Any, scale: Any, softcap: Any) -> None:
    """Turn scores [num_keys] float32 into `softcap * tanh(score * scale / softcap)`, in place."""
    factor = scale / softcap
    for i in range(scores.shape[0]):
        scores[i] = softcap * np.tanh(scores[i] * factor)
