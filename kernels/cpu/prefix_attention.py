"""Attention over shared prefixes: each partition is read once, for all rows that share it.

The rows of a group times the query heads of a kv head are one matrix, the keys of a partition
another: two products through oneDNN, with the softmax between them in Numba, several partitions at
a time. Then a partition's result merges into each of its rows, in ascending order of partitions.

A row's bytes do not depend on its group: the products give a row the same bits whatever the number
of rows (from `MIN_ROWS` on) and of matrices, and a partition enters them at its full width.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.decode_attention import scale_arrays
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread
from pagedrun.kernels.cpu.matrix_products import multiply_in, padded_rows
from pagedrun.kernels.cpu.softmax import bend, weigh
from pagedrun.kernels.kv_scales import KVScales
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixGroups, PrefixState

# Scores of one pass, in elements: more partitions a pass cost fewer calls, but scores, keys and
# values should stay in the cache between the products, and large scratch memory is paid for in page
# faults. 2^17 to 2^19 are alike (8.1 to 8.7 ms at 64 rows x 2048 tokens), 2^20 is 1.6 times slower.
MAX_SCORES = 1 << 18
MAX_ROWS = 512


def prefix_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    groups: PrefixGroups,
    scale: float,
    softcap: float | None = None,
    scales: KVScales | None = None,
) -> PrefixState:
    """Attend from each row over the partitions of its groups; see the reference."""
    num_rows, num_heads, head_dim = q.shape
    state = PrefixState(
        peaks=torch.full((num_rows, num_heads), -torch.inf),
        masses=torch.zeros(num_rows, num_heads),
        totals=torch.zeros(num_rows, num_heads, head_dim),
        num_partitions=groups.num_partitions,
    )
    tile = max(1, MAX_ROWS * key_cache.shape[1] // num_heads)
    rows, starts = as_array(groups.rows), groups.row_starts.tolist()
    tables = as_array(block_tables)
    with multiply_in(q.dtype):
        for group, (table, first, last) in enumerate(
            zip(
                groups.table_rows.tolist(),
                groups.first_partitions.tolist(),
                groups.last_partitions.tolist(),
                strict=True,
            )
        ):
            for start in range(starts[group], starts[group + 1], tile):
                members = rows[start : min(start + tile, starts[group + 1])]
                _attend(
                    q, members, key_cache, value_cache, scales, tables[table], first, last,
                    scale, softcap, state,
                )  # fmt: skip
    return state


def _attend(
    q: Tensor,
    members: Any,
    key_cache: Tensor,
    value_cache: Tensor,
    scales: KVScales | None,
    table: Any,
    first: int,
    last: int,
    scale: float,
    softcap: float | None,
    state: PrefixState,
) -> None:
    """Merge partitions first .. last - 1 into the state of the rows `members`."""
    num_kv_heads, head_dim = key_cache.shape[1], key_cache.shape[3]
    group = q.shape[1] // num_kv_heads
    height = padded_rows(len(members) * group)
    width = max(1, min(last - first, MAX_SCORES // (num_kv_heads * height * PARTITION_TOKENS)))

    queries = torch.zeros(width, num_kv_heads, height, head_dim)
    spread(queries.numel())
    _pack(as_array(q), members, as_array(queries[0]))
    queries[1:] = queries[0]
    context = torch.empty(2, width, num_kv_heads, PARTITION_TOKENS, head_dim)
    scores = torch.empty(width, num_kv_heads, height, PARTITION_TOKENS)
    partial = torch.empty(width, num_kv_heads, height, head_dim)
    part_state = np.empty((2, width, num_kv_heads, height), np.float32)
    for start in range(first, last, width):
        count = min(width, last - start)
        keys, values = context[0, :count].flatten(0, 1), context[1, :count].flatten(0, 1)
        spread(keys.numel())
        for cache, of_cache, tokens in zip(
            (key_cache, value_cache), scale_arrays(scales), context, strict=True
        ):
            _gather(as_array(cache), of_cache, table, start, as_array(tokens[:count]))
        torch.bmm(
            queries[:count].flatten(0, 1),
            keys.transpose(1, 2),
            out=scores[:count].flatten(0, 1),
        )
        _weigh(
            as_array(scores[:count]),
            len(members) * group,
            np.float32(scale) if softcap else np.float32(scale) * LOG2_E,
            np.float32(softcap or 0.0),
            part_state,
        )
        torch.bmm(scores[:count].flatten(0, 1), values, out=partial[:count].flatten(0, 1))
        _merge(
            as_array(partial[:count]),
            part_state,
            members,
            as_array(state.peaks),
            as_array(state.masses),
            as_array(state.totals),
        )


@kernel
def _pack(q: Any, members: Any, queries: Any) -> None:
    """Copy the members' queries to [num_kv_heads, height, head_dim] float32, a token's heads
    one after another."""
    num_kv_heads = queries.shape[0]
    group = q.shape[1] // num_kv_heads
    for task in numba.prange(num_kv_heads * members.shape[0]):
        head, member = task // members.shape[0], task % members.shape[0]
        for g in range(group):
            source = q[members[member], head * group + g]
            target = queries[head, member * group + g]
            for d in range(target.shape[0]):
                target[d] = to_float32(source[d])


@kernel
def _gather(cache: Any, scales: Any, table: Any, first: Any, out: Any) -> None:
    """Copy partitions from number `first` on to [count, num_kv_heads, partition, dim] float32."""
    num_kv_heads, block_size = cache.shape[1:3]
    for task in numba.prange(out.shape[0] * num_kv_heads):
        index, head = task // num_kv_heads, task % num_kv_heads
        start = (first + index) * PARTITION_TOKENS
        for i in range(PARTITION_TOKENS):
            position = start + i
            source = cache[table[position // block_size], head, position % block_size]
            target = out[index, head, i]
            for d in range(target.shape[0]):
                target[d] = to_float32(source[d])
            if scales.shape[0] > 0:
                factor = scales[table[position // block_size], head, position % block_size]
                for d in range(target.shape[0]):
                    target[d] *= factor


@kernel
def _weigh(scores: Any, num_rows: Any, scale: Any, softcap: Any, part_state: Any) -> None:
    """Turn scores [count, num_kv_heads, height, partition] into weights, padding left as it is."""
    count, num_kv_heads = scores.shape[:2]
    for task in numba.prange(count * num_kv_heads * num_rows):
        index, head = task // (num_kv_heads * num_rows), task // num_rows % num_kv_heads
        row = task % num_rows
        factor = scale
        if softcap > 0:
            bend(scores[index, head, row], scale, softcap)
            factor = LOG2_E
        peak, mass = weigh(scores[index, head, row], factor)
        part_state[0, index, head, row], part_state[1, index, head, row] = peak, mass


@kernel
def _merge(
    partial: Any, part_state: Any, members: Any, peaks: Any, masses: Any, totals: Any
) -> None:
    """Merge [count, num_kv_heads, height, dim] partial results into the members' states."""
    num_kv_heads = partial.shape[1]
    group = peaks.shape[1] // num_kv_heads
    for task in numba.prange(members.shape[0] * peaks.shape[1]):
        member, q_head = task // peaks.shape[1], task % peaks.shape[1]
        head, column = q_head // group, member * group + q_head % group
        row = members[member]
        for index in range(partial.shape[0]):
            peaks[row, q_head], masses[row, q_head] = _merge_one(
                partial[index, head, column],
                part_state[0, index, head, column],
                part_state[1, index, head, column],
                totals[row, q_head],
                peaks[row, q_head],
                masses[row, q_head],
            )


@part()
def _merge_one(
    partial: Any, part_peak: Any, part_mass: Any, total: Any, old_peak: Any, old_mass: Any
) -> Any:
    peak = max(old_peak, part_peak)
    old, new = exp2(old_peak - peak), exp2(part_peak - peak)
    for d in range(total.shape[0]):
        total[d] = total[d] * old + partial[d] * new
    return peak, old_mass * old + part_mass * new
