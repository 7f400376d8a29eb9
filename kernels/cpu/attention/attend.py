"""The tasks of attention: the rows of a tile over partitions of their context.

Scores [partition, 32] are keys x queries, totals [dim, 32] += values x weights: rows are columns,
32 to a block. So keys enter a product as they lie in the cache, the softmax between the products
goes through all rows at once without adding across lanes, and its weights come out as the next
product wants them.

Why a row's bits depend on nothing but its own context: each element of a product is one chain of
sums in ascending order; partitions are counted from token 0 and taken in ascending order, the state
(largest score, sum of weights, totals) being carried in float32; masked keys weigh exactly 0, and
adding zeros changes nothing; and a lane never meets another.

Codes of a quantised cache are copied to what the products take, and their scales multiply scores
and weights (see `factors`).
"""

from typing import Any

import numpy as np

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.kernels.cpu.attention.factors import factors_for, read_factors, scale_scores
from pagedrun.kernels.cpu.attention.gather import gather, prefetch_partition, spoil
from pagedrun.kernels.cpu.attention.groups import FIRST, LAST, LEVEL, TABLE, TO_THE_END
from pagedrun.kernels.cpu.attention.operands import BLOCK_ROWS
from pagedrun.kernels.cpu.attention.softmax import cap, mask, weigh
from pagedrun.kernels.cpu.attention.tile import (
    ALL_HIGH,
    ALL_LOW,
    SOME_HIGH,
    SOME_LOW,
    begin,
    join_sinks,
    keep_state,
    load_state,
    look,
    pack_queries,
    tile_memory,
    write_results,
)
from pagedrun.kernels.cpu.exp2 import LOG2_E
from pagedrun.kernels.cpu.jit import part
from pagedrun.kernels.cpu.simd.aligned import aligned_zeros

DIM_STEP = 32  # head sizes are padded to a multiple of it
TOKEN_STEP = 32  # of a partition, so many tokens at a time are left out if no row sees them
_LANES = 16


@part()
def attend_tiles(
    first_task: Any,
    end: Any,
    step: Any,
    tiles: Any,
    num_blocks: Any,
    dim: Any,
    q: Any,
    keys: Any,
    values: Any,
    work: Any,
    softmax: Any,
    state: Any,
    out: Any,
    operands: Any,
    can_stay: Any,
    source_of: Any,
    pack_values: Any,
    multiply_keys: Any,
    multiply_values: Any,
    power: Any,
    store_weights: Any,
) -> None:
    """Do every `step`-th task from `first_task` to `end`; a task is a tile and a kv head.

    tiles: see `cut_tiles`; none has more than `num_blocks` blocks. dim: the padded head size. q:
    [num_tokens, num_heads, head_dim]. keys, values: `Cache`. out: as q, for tokens whose groups go
    to the end. The functions are the processor's: see `tile_products` for what they do.
    """
    key_cache, key_flat, key_scales = keys
    value_cache, value_flat, value_scales = values
    tables, all_rows, groups, lows, highs = work
    scale, softcap, sinks = softmax
    key_copy, value_copy, packed, queries, _, weights = operands
    num_kv_heads = key_cache.shape[1]
    group_size = q.shape[1] // num_kv_heads
    tile = tile_memory(num_blocks, dim)
    peaks, sums, totals, row_lows, row_highs, block_bounds, _ = tile
    scores = aligned_zeros(PARTITION_TOKENS * BLOCK_ROWS, np.float32)
    key_factors, value_factors = factors_for(key_cache), factors_for(value_cache)
    places = np.zeros(PARTITION_TOKENS // _LANES, np.int64)
    near = aligned_zeros(BLOCK_ROWS, np.float32)
    far = aligned_zeros(BLOCK_ROWS, np.float32)
    for task in range(first_task, end, step):
        cut, head = tiles[task // num_kv_heads], task % num_kv_heads
        group, rows = groups[cut[0]], all_rows[cut[1] : cut[2]]
        table, num_rows = tables[group[TABLE]], rows.shape[0] * group_size
        low, high, all_low, all_high = look(tile, rows, group_size, lows, highs)
        pack_queries(q, rows, head, group_size, dim, operands)
        if group[LEVEL] == 0:
            begin(tile, num_rows, dim)
        else:
            load_state(tile, state, rows, head, group_size, dim)
        last = min(group[LAST], (high + PARTITION_TOKENS - 1) // PARTITION_TOKENS)
        for partition in range(max(group[FIRST], low // PARTITION_TOKENS), last):
            start = partition * PARTITION_TOKENS
            following = start + PARTITION_TOKENS
            unmasked = all_low <= start and following <= all_high
            if partition + 1 == last or following + PARTITION_TOKENS > high:
                following = -1
            in_place = unmasked and can_stay(key_cache)
            stride = dim
            if in_place:
                stride = _find(key_cache, table, head, start, places)
                if following >= 0:
                    prefetch_partition(key_cache, table, head, following)
                    prefetch_partition(value_cache, table, head, following)
            else:
                for i in range(places.shape[0]):
                    places[i] = i * dim * _LANES
                stop = min(high, start + PARTITION_TOKENS)
                gather(key_cache, table, head, start, stop, following, key_copy, dim)
                gather(value_cache, table, head, start, stop, following, value_copy, dim)
                read_factors(key_scales, table, head, start, stop, key_factors)
                read_factors(value_scales, table, head, start, stop, value_factors)
                if not unmasked:
                    spoil(key_copy, value_copy, key_factors, value_factors, dim)
            key_source = source_of(key_flat, key_copy, in_place)
            value_source = source_of(value_flat, value_copy, in_place)
            pack_values(value_source, places, stride, dim, packed)
            for row in range(0, num_rows, BLOCK_ROWS):
                block, both = row // BLOCK_ROWS, num_rows - row > _LANES
                bounds = block_bounds[block]
                seen = min(PARTITION_TOKENS, bounds[SOME_HIGH] - start)
                if seen <= 0 or bounds[SOME_LOW] >= start + PARTITION_TOKENS:
                    continue
                num_tokens = (seen + TOKEN_STEP - 1) // TOKEN_STEP * TOKEN_STEP
                multiply_keys(
                    key_source, places, stride, dim, queries, block, num_tokens, scores, both
                )
                # Of the tokens up to here all rows see all.
                clear = num_tokens if bounds[ALL_LOW] <= start else 0
                clear = min(clear, max(0, bounds[ALL_HIGH] - start))
                if clear < num_tokens:
                    for i in range(BLOCK_ROWS):
                        near[i], far[i] = row_lows[row + i] - start, row_highs[row + i] - start
                for half in range(0, BLOCK_ROWS if both else _LANES, _LANES):
                    scale_scores(scores, half, num_tokens, key_factors)
                    factor = scale
                    if softcap > 0:
                        cap(scores, half, num_tokens, scale, softcap)
                        factor = LOG2_E
                    if clear < num_tokens:
                        mask(scores, half, near, far, clear, num_tokens)
                    weigh(
                        scores,
                        half,
                        num_tokens,
                        factor,
                        peaks[row : row + BLOCK_ROWS],
                        sums[row : row + BLOCK_ROWS],
                        totals[row * dim : (row + BLOCK_ROWS) * dim],
                        value_factors,
                        weights,
                        power,
                        store_weights,
                    )
                multiply_values(packed, dim, weights, totals, block, num_tokens, both)
        if group[LAST] == TO_THE_END:
            if sinks.shape[0] > 0:
                join_sinks(tile, sinks, num_rows, head, group_size)
            write_results(tile, rows, head, group_size, dim, out)
        else:
            keep_state(tile, state, rows, head, group_size, dim)


@part()
def _find(cache: Any, table: Any, head: Any, start: Any, places: Any) -> Any:
    """Write where every sixteen tokens of a partition lie in the cache; return a token's size."""
    num_kv_heads, block_size, head_dim = cache.shape[1], cache.shape[2], cache.shape[3]
    for i in range(places.shape[0]):
        position = start + i * _LANES
        block, offset = np.int64(table[position // block_size]), position % block_size
        places[i] = ((block * num_kv_heads + head) * block_size + offset) * head_dim
    return head_dim
