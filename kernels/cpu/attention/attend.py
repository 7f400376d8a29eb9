"""One task of attention: the rows of a tile, in blocks of 32, over partitions of their context.

A row is one query head of one token. Everything lies transposed, a row being a column of 32 floats
or words: scores [partition, 32] = keys x queries, totals [dim, 32] += values x weights. So keys
enter a product as they lie in the cache, the softmax between the products goes through all rows at
once without adding across lanes, and its weights come out as the next product wants them.

Why a row's bits depend on nothing but its own context: each element of a product is one chain of
sums in ascending order; partitions are counted from token 0 and taken in ascending order, the state
(largest score, sum of weights, totals) being carried in float32; masked keys weigh exactly 0, and
adding zeros changes nothing; and a lane never meets another.
"""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.attention.gather import (
    as_operand,
    fill,
    gather,
    prefetch_partition,
    spoil,
)
from pagedrun.kernels.cpu.attention.groups import FIRST, LAST, LEVEL, TABLE, TO_THE_END
from pagedrun.kernels.cpu.attention.softmax import BLOCK_ROWS, cap, divide, mask, weigh
from pagedrun.kernels.cpu.bfloat16 import from_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E
from pagedrun.kernels.cpu.jit import part
from pagedrun.kernels.cpu.simd.words import transpose_words
from pagedrun.kernels.partition import PARTITION_TOKENS

DIM_STEP = 32  # head sizes are padded to a multiple of it
TOKEN_STEP = 32  # of a partition, so many tokens at a time are left out if no row sees them
_LANES = 16


@part()
def attend_tiles(
    first: Any,
    last: Any,
    step: Any,
    q: Any,
    key_cache: Any,
    value_cache: Any,
    flat_keys: Any,
    flat_values: Any,
    key_scales: Any,
    value_scales: Any,
    block_tables: Any,
    all_rows: Any,
    groups: Any,
    lows: Any,
    highs: Any,
    tiles: Any,
    scale: Any,
    softcap: Any,
    padded_dim: Any,
    peaks: Any,
    sums: Any,
    totals: Any,
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
    """Do every `step`-th task from `first` to `last`; a task is a tile and a kv head.

    flat_keys, flat_values: the caches as flat arrays. all_rows, groups, tiles: see `groups`. lows,
    highs: [num_tokens] int32, the positions that a token sees; empty where every token sees all.
    What a token has read is kept in peaks, sums [num_tokens, num_heads] and totals [num_tokens,
    num_heads, head_dim] from one group to the next. operands: (keys, values, packed values,
    queries, 32 rows of queries, weights), scratch memory; the functions are the processor's, see
    `tile_products` for what they do.
    """
    keys, values, packed, queries, block_rows, weights = operands
    num_kv_heads = key_cache.shape[1]
    group_size = q.shape[1] // num_kv_heads
    scratch = np.zeros(BLOCK_ROWS * padded_dim, np.float32)
    scores = np.zeros(PARTITION_TOKENS * BLOCK_ROWS, np.float32)
    places = np.zeros(PARTITION_TOKENS // _LANES, np.int64)
    near, far = np.zeros(BLOCK_ROWS, np.float32), np.zeros(BLOCK_ROWS, np.float32)
    most_rows = 0
    for tile in range(tiles.shape[0]):
        most_rows = max(most_rows, (tiles[tile, 2] - tiles[tile, 1]) * group_size)
    most_rows = (most_rows + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_ROWS
    block_totals = np.zeros(most_rows * padded_dim, np.float32)
    block_peaks, block_sums = np.zeros(most_rows, np.float32), np.zeros(most_rows, np.float32)
    row_lows, row_highs = np.zeros(most_rows, np.int32), np.zeros(most_rows, np.int32)
    bounds = np.zeros(most_rows // BLOCK_ROWS * 4, np.int64)
    for task in range(first, last, step):
        tile, head = task // num_kv_heads, task % num_kv_heads
        which = groups[tiles[tile, 0]]
        rows, table = all_rows[tiles[tile, 1] : tiles[tile, 2]], block_tables[which[TABLE]]
        first_partition, last_partition = which[FIRST], which[LAST]
        begins, ends = which[LEVEL] == 0, which[LAST] == TO_THE_END
        group = group_size
        num_rows = rows.shape[0] * group
        num_blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
        block_size = padded_dim * BLOCK_ROWS
        # What the rows of each block see, in positions: all of them, and any of them.
        low, high, all_low, all_high = 1 << 30, 0, 0, 1 << 30
        for block in range(num_blocks):
            some_low, some_high, each_low, each_high = 1 << 30, 0, 0, 1 << 30
            for row in range(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS):
                # What fills up the last block sees what the last row sees.
                token = rows[min(row, num_rows - 1) // group]
                row_low, row_high = 0, 1 << 30
                if highs.shape[0] > 0:
                    row_low, row_high = lows[token], highs[token]
                row_lows[row], row_highs[row] = row_low, row_high
                some_low, each_low = min(some_low, row_low), max(each_low, row_low)
                some_high, each_high = max(some_high, row_high), min(each_high, row_high)
            bounds[4 * block], bounds[4 * block + 1] = some_low, some_high
            bounds[4 * block + 2], bounds[4 * block + 3] = each_low, each_high
            low, high = min(low, some_low), max(high, some_high)
            all_low, all_high = max(all_low, each_low), min(all_high, each_high)
        _pack_queries(q, rows, head, group, num_blocks, padded_dim, block_rows, queries)
        if begins:
            for row in range(num_blocks * BLOCK_ROWS):
                block_peaks[row], block_sums[row] = -np.inf, 0.0
            fill(block_totals, 0)
        else:
            _load_state(
                peaks, sums, totals, rows, head, group, padded_dim,
                scratch, block_peaks, block_sums, block_totals,
            )  # fmt: skip
        last = min(last_partition, (high + PARTITION_TOKENS - 1) // PARTITION_TOKENS)
        for partition in range(max(first_partition, low // PARTITION_TOKENS), last):
            start = partition * PARTITION_TOKENS
            end = min(high, start + PARTITION_TOKENS)
            unmasked = all_low <= start and start + PARTITION_TOKENS <= all_high
            in_place = unmasked and can_stay(key_cache)
            following = start + PARTITION_TOKENS
            if partition + 1 == last or following + PARTITION_TOKENS > high:
                following = -1
            if in_place:
                stride = _find(key_cache, table, head, start, places)
                if following >= 0:
                    prefetch_partition(key_cache, table, head, following)
                    prefetch_partition(value_cache, table, head, following)
            else:
                stride = padded_dim
                for tile in range(places.shape[0]):
                    places[tile] = tile * stride * _LANES
                gather(key_cache, key_scales, table, head, start, end, following, keys, stride)
                gather(
                    value_cache, value_scales, table, head, start, end, following, values, stride
                )
                if not unmasked:
                    spoil(keys, values, stride)
            key_source = source_of(flat_keys, keys, in_place)
            pack_values(
                source_of(flat_values, values, in_place), places, stride, padded_dim, packed
            )
            for block in range(num_blocks):
                if bounds[4 * block + 1] <= start or bounds[4 * block] >= end:
                    continue
                wanted = min(PARTITION_TOKENS, bounds[4 * block + 1] - start)
                num_tokens = (wanted + TOKEN_STEP - 1) // TOKEN_STEP * TOKEN_STEP
                both = num_rows - block * BLOCK_ROWS > _LANES
                multiply_keys(
                    key_source, places, stride, padded_dim, queries, block, num_tokens, scores, both
                )
                row = block * BLOCK_ROWS
                masked = bounds[4 * block + 2] > start or bounds[4 * block + 3] < start + num_tokens
                if masked:
                    for i in range(BLOCK_ROWS):
                        near[i], far[i] = row_lows[row + i] - start, row_highs[row + i] - start
                for half in range(0, BLOCK_ROWS if both else _LANES, _LANES):
                    factor = scale
                    if softcap > 0:
                        cap(scores, half, num_tokens, scale, softcap)
                        factor = LOG2_E
                    if masked:
                        first = (
                            0
                            if bounds[4 * block + 2] > start
                            else max(0, bounds[4 * block + 3] - start)
                        )
                        mask(scores, half, near, far, first, num_tokens)
                    weigh(
                        scores,
                        half,
                        num_tokens,
                        factor,
                        block_peaks[row : row + BLOCK_ROWS],
                        block_sums[row : row + BLOCK_ROWS],
                        block_totals[block * block_size : (block + 1) * block_size],
                        weights,
                        power,
                        store_weights,
                    )
                multiply_values(packed, padded_dim, weights, block_totals, block, num_tokens, both)
        if not ends:
            _keep_state(
                block_peaks, block_sums, block_totals, rows, head, group, padded_dim,
                scratch, peaks, sums, totals,
            )  # fmt: skip
            continue
        for block in range(num_blocks):
            own = block_totals[block * block_size : (block + 1) * block_size]
            for half in range(0, BLOCK_ROWS, _LANES):
                divide(own, half, block_sums[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS])
            _transpose_block(own, padded_dim, scratch)
            for row in range(min(BLOCK_ROWS, num_rows - block * BLOCK_ROWS)):
                number = block * BLOCK_ROWS + row
                source = scratch[row * padded_dim : (row + 1) * padded_dim]
                target = out[rows[number // group], head * group + number % group]
                for d in range(target.shape[0]):
                    target[d] = from_float32(source[d], out)


@part()
def _find(cache: Any, table: Any, head: Any, start: Any, places: Any) -> Any:
    """Write where every sixteen tokens of a partition lie in the cache; return a token's size."""
    num_kv_heads, block_size, head_dim = cache.shape[1], cache.shape[2], cache.shape[3]
    for tile in range(places.shape[0]):
        position = start + tile * _LANES
        block, offset = np.int64(table[position // block_size]), position % block_size
        places[tile] = ((block * num_kv_heads + head) * block_size + offset) * head_dim
    return head_dim


@part()
def _pack_queries(
    q: Any,
    rows: Any,
    head: Any,
    group: Any,
    num_blocks: Any,
    padded_dim: Any,
    block_rows: Any,
    queries: Any,
) -> None:
    """Copy the rows' queries to [num_blocks, words of a row, 32]: what a row has becomes a column.

    A word is a float32, or two neighbouring bfloat16 as they lie in memory. block_rows: scratch
    memory [32 * dim] in the dtype of q, or float32.
    """
    num_rows = rows.shape[0] * group
    elements = 4 // block_rows.itemsize  # in a word
    num_words = padded_dim // elements
    for block in range(num_blocks):
        fill(block_rows, 0)
        for row in range(min(BLOCK_ROWS, num_rows - block * BLOCK_ROWS)):
            number = block * BLOCK_ROWS + row
            source = q[rows[number // group], head * group + number % group]
            target = block_rows[row * padded_dim : (row + 1) * padded_dim]
            for d in range(source.shape[0]):
                target[d] = as_operand(source[d], block_rows)
        for word in range(0, num_words, _LANES):
            for half in range(0, BLOCK_ROWS, _LANES):
                transpose_words(
                    block_rows,
                    half * padded_dim + word * elements,
                    padded_dim,
                    queries,
                    (block * num_words + word) * BLOCK_ROWS + half,
                    BLOCK_ROWS,
                )


@part()
def _transpose_block(own: Any, padded_dim: Any, scratch: Any) -> None:
    """Copy totals [dim * 32] to [32 * dim]."""
    for d in range(0, padded_dim, _LANES):
        for half in range(0, BLOCK_ROWS, _LANES):
            transpose_words(
                own, d * BLOCK_ROWS + half, BLOCK_ROWS, scratch, half * padded_dim + d, padded_dim
            )


@part()
def _load_state(
    peaks: Any,
    sums: Any,
    totals: Any,
    rows: Any,
    head: Any,
    group: Any,
    padded_dim: Any,
    scratch: Any,
    block_peaks: Any,
    block_sums: Any,
    block_totals: Any,
) -> None:
    """Read the state that an earlier group of partitions left."""
    num_rows = rows.shape[0] * group
    for row in range(num_rows):
        token, q_head, place = rows[row // group], head * group + row % group, row % BLOCK_ROWS
        block_peaks[row], block_sums[row] = peaks[token, q_head], sums[token, q_head]
        source = totals[token, q_head]
        target = scratch[place * padded_dim : (place + 1) * padded_dim]
        for d in range(source.shape[0]):
            target[d] = source[d]
        fill(target, source.shape[0])  # the memory is that of the task before
        if place == BLOCK_ROWS - 1 or row == num_rows - 1:
            start = (row - place) * padded_dim
            for d in range(0, padded_dim, _LANES):
                for half in range(0, BLOCK_ROWS, _LANES):
                    transpose_words(
                        scratch,
                        half * padded_dim + d,
                        padded_dim,
                        block_totals,
                        start + d * BLOCK_ROWS + half,
                        BLOCK_ROWS,
                    )


@part()
def _keep_state(
    block_peaks: Any,
    block_sums: Any,
    block_totals: Any,
    rows: Any,
    head: Any,
    group: Any,
    padded_dim: Any,
    scratch: Any,
    peaks: Any,
    sums: Any,
    totals: Any,
) -> None:
    """Write the state to where a later group of partitions, or decoding, finds it."""
    for row in range(rows.shape[0] * group):
        token, q_head, place = rows[row // group], head * group + row % group, row % BLOCK_ROWS
        if place == 0:
            start = row * padded_dim
            own = block_totals[start : start + padded_dim * BLOCK_ROWS]
            _transpose_block(own, padded_dim, scratch)
        peaks[token, q_head], sums[token, q_head] = block_peaks[row], block_sums[row]
        source = scratch[place * padded_dim : (place + 1) * padded_dim]
        target = totals[token, q_head]
        for d in range(target.shape[0]):
            target[d] = source[d]
