"""Inputs of the attention kernels: groups of rows, and the arrays of a call in named tuples.

A group is one line of an int64 array: the indices in `rows` where its tokens begin and end, the row
of the block tables to read, the first partition and the one after the last (`TO_THE_END`: as far as
its tokens see, which completes them), and its level. Groups of one level have no token in
common; a token reads its groups in ascending order of level.

Numba unpacks named tuples at no cost.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from pagedrun.kernels.attention_inputs import PrefixState, RelativeTerms, Softmax
from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import inlined, serial_kernel
from pagedrun.kernels.cpu.simd.arrays import aligned_zeros
from pagedrun.kernels.cpu.simd.lanes import LOG2_E
from pagedrun.kernels.partition import PARTITION_TOKENS

BLOCK_ROWS = 32  # a row is one query head of one token


class Cache(NamedTuple):
    """Keys or values, or their codes.

    blocks: [num_blocks, num_kv_heads, block_size, head_dim]; flat: the same memory as one row.
    scales: [num_blocks, num_kv_heads, block_size] float32, without blocks where the cache is not
    quantized.
    """

    blocks: Any
    flat: Any
    scales: Any


class Work(NamedTuple):
    """Groups of rows and the positions visible to each token.

    tables: [num_tables, max_blocks] int32. rows, groups: see the module. lows, highs: [num_tokens]
    int32, the positions visible to a token; empty where every token sees all.
    """

    tables: Any
    rows: Any
    groups: Any
    lows: Any
    highs: Any


class SoftmaxNumbers(NamedTuple):
    """Constants of a softmax in base 2.

    scale: float32, log2(e) included where there is no cap. softcap: float32, 0 for none. sinks:
    [num_heads] float32, times log2(e); empty for none.
    """

    scale: Any
    softcap: Any
    sinks: Any

    @classmethod
    def of(cls, softmax: Softmax) -> "SoftmaxNumbers":
        """Return the constants of a softmax."""
        scale, softcap = np.float32(softmax.scale), np.float32(softmax.softcap or 0.0)
        sinks = np.empty(0, np.float32)
        if softmax.sinks is not None:
            sinks = softmax.sinks.numpy() * LOG2_E
        return cls(scale if softmax.softcap else scale * LOG2_E, softcap, sinks)


class Relative(NamedTuple):
    """Tables of `RelativeTerms`, flat, in the dtype of the queries; empty for none.

    strides: [2, 2] int64, elements from token to token and from head to head of each table.
    columns: [2 * num_distances - 1] int32.
    """

    by_query: Any
    by_key: Any
    strides: Any
    columns: Any

    @classmethod
    def of(cls, terms: RelativeTerms | None, dtype: torch.dtype) -> "Relative":
        """Return the arrays of terms of queries in `dtype`, without elements for None."""
        strides, nothing = np.zeros((2, 2), np.int64), as_array(torch.empty(0, dtype=dtype))
        if terms is None:
            return cls(nothing, nothing, strides, np.empty(0, np.int32))
        flat = [nothing, nothing]
        for index, table in enumerate((terms.by_query, terms.by_key)):
            if table is None:
                continue
            assert table.stride(2) == 1, "columns are neighbors"
            assert table.dtype is dtype, "tables have the dtype of the queries"
            sizes = zip(table.shape, table.stride(), strict=True)
            num_elements = 1 + sum((size - 1) * stride for size, stride in sizes)
            flat[index] = as_array(table.as_strided((num_elements,), (1,)))
            strides[index] = table.stride()[:2]
        return cls(flat[0], flat[1], strides, as_array(terms.columns.contiguous()))


class State(NamedTuple):
    """Softmax state of tokens, between their groups.

    max_scores, sum_exps: [num_tokens, num_heads] float32, the largest score so far (in base 2) and
    the sum of weights relative to it. accs: [num_tokens, num_heads, head_dim] float32.
    """

    max_scores: Any
    sum_exps: Any
    accs: Any

    @classmethod
    def of(cls, state: PrefixState | None) -> "State":
        """Return the arrays of a state, without rows for None."""
        if state is None:
            nothing = np.empty((0, 0), np.float32)
            return cls(nothing, nothing, np.empty((0, 0, 0), np.float32))
        return cls(as_array(state.max_scores), as_array(state.sum_exps), as_array(state.accs))


class Operands(NamedTuple):
    """One thread's memory for the operands of products, flat.

    keys, values: a partition each, [partition * dim]. packed: the values in a product's layout.
    queries: [num_blocks * words of a row * 32]. block_rows: the queries of a block before they are
    transposed, [32 * dim]. scores: those of a block, [partition * 32] float32. weights: those of a
    block, [words of a partition * 32].
    """

    keys: Any
    values: Any
    packed: Any
    queries: Any
    block_rows: Any
    scores: Any
    weights: Any


@inlined()
def bfloat16_operands(num_blocks: Any, dim: Any) -> Any:
    """Return memory for operands of bfloat16, two to a word."""
    return Operands(
        aligned_zeros(PARTITION_TOKENS * dim, np.uint16),
        aligned_zeros(PARTITION_TOKENS * dim, np.uint16),
        aligned_zeros(PARTITION_TOKENS * dim, np.uint16),
        aligned_zeros(num_blocks * dim // 2 * BLOCK_ROWS, np.uint32),
        aligned_zeros(BLOCK_ROWS * dim, np.uint16),
        aligned_zeros(PARTITION_TOKENS * BLOCK_ROWS, np.float32),
        aligned_zeros(PARTITION_TOKENS // 2 * BLOCK_ROWS, np.uint32),
    )


@inlined()
def float32_operands(num_blocks: Any, dim: Any) -> Any:
    """Return memory for float32 operands; values are not packed, and weights take the place of
    their scores: both beside keys and values would not fit a cache of 32 KiB."""
    values = aligned_zeros(PARTITION_TOKENS * dim, np.float32)
    weights = aligned_zeros(PARTITION_TOKENS * BLOCK_ROWS, np.float32)
    return Operands(
        aligned_zeros(PARTITION_TOKENS * dim, np.float32),
        values,
        values,
        aligned_zeros(num_blocks * dim * BLOCK_ROWS, np.float32),
        aligned_zeros(BLOCK_ROWS * dim, np.float32),
        weights,
        weights,
    )


BEGIN, END, TABLE, FIRST, LAST, LEVEL = range(6)
TO_THE_END = 1 << 40


@serial_kernel
def chunk_groups(
    chunk_starts: Any, table_rows: Any, first_positions: Any, block_tables: Any, block_size: Any
) -> Any:
    """Return the groups of prompt chunks; neighbors read their common partitions together.

    Chunks share a partition if their tables name the same blocks up to its end; rows come in the
    order of the prefix tree, so chunks that share are neighbors. Arguments: as for
    `prefill_attention`, with `rows` = 0, 1, 2, … The groups come level by level.
    """
    num_chunks = table_rows.shape[0]
    shared = np.zeros(num_chunks + 1, np.int64)  # partitions shared with the chunk before
    for chunk in range(1, num_chunks):
        before = min(first_positions[chunk - 1], first_positions[chunk]) // PARTITION_TOKENS
        one, other = block_tables[table_rows[chunk - 1]], block_tables[table_rows[chunk]]
        num_blocks = 0
        while num_blocks * block_size < before * PARTITION_TOKENS and (
            one[num_blocks] == other[num_blocks]
        ):
            num_blocks += 1
        shared[chunk] = min(before, num_blocks * block_size // PARTITION_TOKENS)
    groups = np.zeros((2 * num_chunks, 6), np.int64)
    num_groups = 0
    # Chunks `stack[i, 0]` up to `stack[i, 1]` that agree on all before partition `stack[i, 2]`.
    stack = np.zeros((2 * num_chunks + 1, 4), np.int64)
    stack[0, 1] = num_chunks
    top = 1
    while top > 0:
        top -= 1
        first, last, partition, level = (
            stack[top, 0],
            stack[top, 1],
            stack[top, 2],
            stack[top, 3],
        )
        common = TO_THE_END
        for chunk in range(first + 1, last):
            common = min(common, shared[chunk])
        if common > partition:
            _write_group(
                groups[num_groups],
                chunk_starts[first],
                chunk_starts[last],
                table_rows[first],
                partition,
                common,
                level,
            )
            num_groups += 1
            level += 1
        if common == TO_THE_END:
            continue
        start = first
        for chunk in range(first + 1, last + 1):
            if chunk == last or shared[chunk] == common:
                stack[top, 0], stack[top, 1] = start, chunk
                stack[top, 2], stack[top, 3] = common, level
                top += 1
                start = chunk
    return _by_level(groups, num_groups)


@inlined()
def _write_group(
    group: Any, begin: Any, end: Any, table: Any, first: Any, last: Any, level: Any
) -> None:
    group[BEGIN], group[END], group[TABLE] = begin, end, table
    group[FIRST], group[LAST], group[LEVEL] = first, last, level


@inlined()
def _by_level(groups: Any, num_groups: Any) -> Any:
    """Return the first `num_groups` groups, sorted by level (stable)."""
    ordered = np.zeros((num_groups, groups.shape[1]), np.int64)
    place, level = 0, 0
    while place < num_groups:
        for group in range(num_groups):
            if groups[group, LEVEL] == level:
                for field in range(groups.shape[1]):
                    ordered[place, field] = groups[group, field]
                place += 1
        level += 1
    return ordered


@inlined()
def cut_tiles(groups: Any, num_tokens: Any) -> Any:
    """Cut groups, which come level by level, into tiles of at most `num_tokens` tokens.

    Returns tiles [num_tiles, 3] int64: group, begin and end of the tokens in `rows`; level_starts
    [num_levels + 1] int64, the first tile of each level; and the most tokens of a tile.
    """
    num_tiles = 0
    for group in range(groups.shape[0]):
        num_tiles += (groups[group, END] - groups[group, BEGIN] + num_tokens - 1) // num_tokens
    num_levels = groups[groups.shape[0] - 1, LEVEL] + 1
    tiles = np.zeros((num_tiles, 3), np.int64)
    level_starts = np.zeros(num_levels + 1, np.int64)
    for level in range(num_levels + 1):
        level_starts[level] = num_tiles
    tile, most_tokens = 0, 0
    for group in range(groups.shape[0]):
        level = groups[group, LEVEL]
        level_starts[level] = min(level_starts[level], tile)
        for start in range(groups[group, BEGIN], groups[group, END], num_tokens):
            tiles[tile, 0], tiles[tile, 1] = group, start
            tiles[tile, 2] = min(groups[group, END], start + num_tokens)
            most_tokens = max(most_tokens, tiles[tile, 2] - start)
            tile += 1
    return tiles, level_starts, most_tokens


@inlined()
def cut_tasks(q: Any, keys: Any, groups: Any, tile_tokens: Any) -> Any:
    """Return tiles, the first task of each level, and the largest number of blocks of a tile.

    A task is a tile and a kv head.
    """
    tiles, levels, most_tokens = cut_tiles(groups, tile_tokens)
    num_kv_heads = keys.blocks.shape[1]
    most_rows = most_tokens * (q.shape[1] // num_kv_heads)
    return tiles, levels * num_kv_heads, (most_rows + BLOCK_ROWS - 1) // BLOCK_ROWS


@serial_kernel
def prefix_levels(
    rows: Any, row_starts: Any, table_rows: Any, first_partitions: Any, last_partitions: Any,
    num_rows: Any,
) -> Any:  # fmt: skip
    """Return the groups of `PrefixGroups`, level by level."""
    num_groups = table_rows.shape[0]
    groups = np.zeros((num_groups, 6), np.int64)
    levels = np.zeros(num_rows, np.int64)
    for group in range(num_groups):
        begin, end = row_starts[group], row_starts[group + 1]
        level = levels[rows[begin]]  # equal for all its rows, which shared earlier groups
        _write_group(
            groups[group],
            begin,
            end,
            table_rows[group],
            first_partitions[group],
            last_partitions[group],
            level,
        )
        for place in range(begin, end):
            levels[rows[place]] = level + 1
    return _by_level(groups, num_groups)
