"""Tasks of group attention: the rows of a tile over partitions of their context.

A tile is the rows of one task, in blocks of 32, and their state. Scores [partition, 32] are keys x
queries, accs [dim, 32] += values x weights: everything is transposed, with 32 rows as the columns
of a block. Keys enter a product as they lie in the cache, the softmax between the products treats
all rows at once without adding across lanes, and its weights have the layout of the next product.

A row's bits depend on its own context alone: each element of a product is one chain of sums in
ascending order; partitions are counted from token 0 and read in ascending order, with the state
(max_scores, sum_exps, accs) carried in float32; masked keys have weight 0, and adding zeros changes
nothing; lanes are never combined.

Codes of a quantized cache are copied to operands of the products, and their scales multiply scores
and weights (see `partitions`).

Softmax: scores [partition, 32] float32; max_scores, sum_exps [32] float32, the largest score so far
(in base 2) and the sum of weights relative to it. Functions unpack named tuples before they loop,
because each access to a field counts a reference.
"""

from typing import Any, NamedTuple

import numpy as np

from pagedrun.kernels.cpu.attention.inputs import (
    BEGIN,
    BLOCK_ROWS,
    FIRST,
    LAST,
    LEVEL,
    TABLE,
    TO_THE_END,
)
from pagedrun.kernels.cpu.attention.partitions import (
    confine_nans,
    factors_for,
    fill,
    gather,
    prefetch_partition,
    read_factors,
    scale_scores,
    scaled,
)
from pagedrun.kernels.cpu.attention.relative import add_terms, find_rows
from pagedrun.kernels.cpu.bfloat16 import as_operand, from_float32
from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd.arrays import aligned_zeros, next_task
from pagedrun.kernels.cpu.simd.lanes import (
    HIGH,
    LOG2_E,
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
from pagedrun.kernels.cpu.simd.words import transpose_words
from pagedrun.kernels.partition import PARTITION_TOKENS

DIM_STEP = 32  # head sizes are padded to a multiple of it
TOKEN_STEP = 32  # of a partition, so many tokens at a time are left out if no row sees them
_LANES = 16


@inlined()
def attend_tiles(
    shares: Any,
    thread: Any,
    before: Any,
    tiles: Any,
    num_blocks: Any,
    dim: Any,
    q: Any,
    keys: Any,
    values: Any,
    work: Any,
    softmax: Any,
    relative: Any,
    state: Any,
    out: Any,
    operands: Any,
    products: Any,
) -> None:
    """Compute the tasks of a level that other threads do not; one is a tile and a kv head.

    shares: see `next_task`. before: tasks of the levels before. tiles: see `cut_tiles`; num_blocks:
    see `cut_tasks`. dim: the padded head size. q, out: [num_tokens, num_heads, head_dim]; tokens
    whose groups reach the end are written to `out`. keys, values: `Cache`. relative: `Relative`.
    products: a module of products, see `amx_products`.
    """
    key_cache, key_flat, key_scales = keys
    value_cache, value_flat, value_scales = values
    tables, all_rows, groups, lows, highs = work
    scale, softcap, sinks = softmax
    _, _, strides, columns = relative
    has_terms = columns.shape[0] > 0
    query_rows = np.zeros((3, BLOCK_ROWS), np.int64)
    key_copy, value_copy, packed, queries, _, scores, weights = operands
    num_kv_heads = key_cache.shape[1]
    group_size = q.shape[1] // num_kv_heads
    tile = tile_memory(num_blocks, dim)
    max_scores, sum_exps, accs, row_lows, row_highs, block_bounds, _ = tile
    key_factors, value_factors = factors_for(key_cache), factors_for(value_cache)
    places = np.zeros(PARTITION_TOKENS // _LANES, np.int64)
    near = aligned_zeros(BLOCK_ROWS, np.float32)
    far = aligned_zeros(BLOCK_ROWS, np.float32)
    while True:
        task = next_task(shares, thread)
        if task < 0:
            break
        task += before
        cut, head = tiles[task // num_kv_heads], task % num_kv_heads
        group, rows = groups[cut[0]], all_rows[cut[1] : cut[2]]
        table, num_rows = tables[group[TABLE]], rows.shape[0] * group_size
        low, high, all_low, all_high = row_bounds(tile, rows, group_size, lows, highs)
        pack_queries(q, rows, head, group_size, dim, operands)
        if group[LEVEL] == 0:
            reset_state(tile, num_rows, dim)
        else:
            load_state(tile, state, rows, head, group_size, dim)
        last = min(group[LAST], (high + PARTITION_TOKENS - 1) // PARTITION_TOKENS)
        for partition in range(max(group[FIRST], low // PARTITION_TOKENS), last):
            start = partition * PARTITION_TOKENS
            following = start + PARTITION_TOKENS
            unmasked = all_low <= start and following <= all_high
            if partition + 1 == last or following + PARTITION_TOKENS > high:
                following = -1
            in_place = unmasked and products.reads_in_place(key_cache)
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
                    confine_nans(key_copy, value_copy, key_factors, value_factors, dim)
            key_source = products.operand_source(key_flat, key_copy, in_place)
            value_source = products.operand_source(value_flat, value_copy, in_place)
            products.pack_values(value_source, places, stride, dim, packed)
            for row in range(0, num_rows, BLOCK_ROWS):
                block, both = row // BLOCK_ROWS, num_rows - row > _LANES
                bounds = block_bounds[block]
                seen = min(PARTITION_TOKENS, bounds[SOME_HIGH] - start)
                if seen <= 0 or bounds[SOME_LOW] >= start + PARTITION_TOKENS:
                    continue
                num_tokens = (seen + TOKEN_STEP - 1) // TOKEN_STEP * TOKEN_STEP
                products.multiply_keys(
                    key_source, places, stride, dim, queries, block, num_tokens, scores, both
                )
                # All rows see all tokens up to here.
                clear = num_tokens if bounds[ALL_LOW] <= start else 0
                clear = min(clear, max(0, bounds[ALL_HIGH] - start))
                if clear < num_tokens:
                    for i in range(BLOCK_ROWS):
                        near[i], far[i] = row_lows[row + i] - start, row_highs[row + i] - start
                if has_terms:
                    find_rows(
                        rows, row, num_rows, head, group_size, group[BEGIN], strides, query_rows
                    )
                for half in range(0, BLOCK_ROWS if both else _LANES, _LANES):
                    scale_scores(scores, half, num_tokens, key_factors)
                    if has_terms:
                        block_rows, known = min(BLOCK_ROWS, num_rows - row), min(seen, num_tokens)
                        add_terms(scores, half, block_rows, query_rows, start, known, relative)
                    factor = scale
                    if softcap > 0:
                        cap_scores(scores, half, num_tokens, scale, softcap)
                        factor = LOG2_E
                    if clear < num_tokens:
                        mask_scores(scores, half, near, far, clear, num_tokens)
                    update_softmax(
                        scores,
                        half,
                        num_tokens,
                        factor,
                        max_scores[row : row + BLOCK_ROWS],
                        sum_exps[row : row + BLOCK_ROWS],
                        accs[row * dim : (row + BLOCK_ROWS) * dim],
                        value_factors,
                        weights,
                        products,
                    )
                products.multiply_values(packed, dim, weights, accs, block, num_tokens, both)
        if group[LAST] == TO_THE_END:
            if sinks.shape[0] > 0:
                add_tile_sinks(tile, sinks, num_rows, head, group_size)
            write_results(tile, rows, head, group_size, dim, out)
        else:
            store_state(tile, state, rows, head, group_size, dim)


@inlined()
def _find(cache: Any, table: Any, head: Any, start: Any, places: Any) -> Any:
    """Write the offsets of each sixteen tokens of a partition; return the stride of tokens."""
    num_kv_heads, block_size, head_dim = cache.shape[1], cache.shape[2], cache.shape[3]
    for i in range(places.shape[0]):
        position = start + i * _LANES
        block, offset = np.int64(table[position // block_size]), position % block_size
        places[i] = ((block * num_kv_heads + head) * block_size + offset) * head_dim
    return head_dim


@inlined()
def _following(place: Any, member: Any, group: Any) -> Any:
    """Return the token and query head of the row after one; a division for each costs more than
    the copy of a short row."""
    if member + 1 < group:
        return place, member + 1
    return place + 1, 0


SOME_LOW, SOME_HIGH, ALL_LOW, ALL_HIGH = range(4)
_EVERY_POSITION = 1 << 30


class Tile(NamedTuple):
    """Memory for the largest tile of a thread, flat, with rows padded to whole blocks.

    max_scores, sum_exps: [num_rows] float32. accs: [num_blocks * dim * 32] float32. lows, highs:
    the positions visible to a row. bounds: [num_blocks, 4], the positions visible to any row of a
    block (SOME_LOW to SOME_HIGH) and to all rows (ALL_LOW to ALL_HIGH). lines: one block [32 * dim]
    that is not transposed.
    """

    max_scores: Any
    sum_exps: Any
    accs: Any
    lows: Any
    highs: Any
    bounds: Any
    lines: Any


@inlined()
def tile_memory(num_blocks: Any, dim: Any) -> Any:
    """Return memory for tiles of up to `num_blocks` blocks."""
    num_rows = num_blocks * BLOCK_ROWS
    return Tile(
        aligned_zeros(num_rows, np.float32),
        aligned_zeros(num_rows, np.float32),
        aligned_zeros(num_rows * dim, np.float32),
        np.zeros(num_rows, np.int32),
        np.zeros(num_rows, np.int32),
        np.zeros((num_blocks, 4), np.int64),
        aligned_zeros(BLOCK_ROWS * dim, np.float32),
    )


@inlined()
def row_bounds(tile: Any, rows: Any, group: Any, lows: Any, highs: Any) -> Any:
    """Write the visible positions of rows and blocks; return those of any row and of all rows.

    Returns (low, high, all_low, all_high). rows: the tile's tokens, each with `group` rows. lows,
    highs: see `Work`.
    """
    num_rows = rows.shape[0] * group
    num_blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    row_lows, row_highs, block_bounds = tile.lows, tile.highs, tile.bounds
    low, high, all_low, all_high = _EVERY_POSITION, 0, 0, _EVERY_POSITION
    for block in range(num_blocks):
        some_low, some_high, each_low, each_high = _EVERY_POSITION, 0, 0, _EVERY_POSITION
        place, member = block * BLOCK_ROWS // group, block * BLOCK_ROWS % group
        for row in range(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS):
            row_low, row_high = 0, _EVERY_POSITION
            if highs.shape[0] > 0:
                row_low, row_high = lows[rows[place]], highs[rows[place]]
            row_lows[row], row_highs[row] = row_low, row_high
            some_low, each_low = min(some_low, row_low), max(each_low, row_low)
            some_high, each_high = max(some_high, row_high), min(each_high, row_high)
            if row < num_rows - 1:  # padding of the last block sees the positions of the last row
                place, member = _following(place, member, group)
        block_bounds[block, SOME_LOW], block_bounds[block, SOME_HIGH] = some_low, some_high
        block_bounds[block, ALL_LOW], block_bounds[block, ALL_HIGH] = each_low, each_high
        low, high = min(low, some_low), max(high, some_high)
        all_low, all_high = max(all_low, each_low), min(all_high, each_high)
    return low, high, all_low, all_high


@inlined()
def pack_queries(q: Any, rows: Any, head: Any, group: Any, dim: Any, operands: Any) -> None:
    """Copy the rows' queries to `operands.queries`.

    A word is a float32, or two neighboring bfloat16 as they lie in memory.
    """
    lines, queries = operands.block_rows, operands.queries
    num_rows, num_words = rows.shape[0] * group, dim * lines.itemsize // 4
    for start in range(0, num_rows, BLOCK_ROWS):
        end = min(BLOCK_ROWS, num_rows - start)
        place, member = start // group, start % group
        for row in range(end):
            source = q[rows[place], head * group + member]
            target = lines[row * dim : (row + 1) * dim]
            for d in range(source.shape[0]):
                target[d] = as_operand(source[d], lines)
            fill(target, source.shape[0])
            place, member = _following(place, member, group)
        fill(lines, end * dim)
        _transpose(lines, 0, BLOCK_ROWS, num_words, queries, start * num_words)


@inlined()
def reset_state(tile: Any, num_rows: Any, dim: Any) -> None:
    """Reset the state of a tile's rows."""
    end = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_ROWS
    max_scores, sum_exps = tile.max_scores, tile.sum_exps
    for row in range(end):
        max_scores[row], sum_exps[row] = -np.inf, 0.0
    fill(tile.accs[: end * dim], 0)


@inlined()
def load_state(tile: Any, state: Any, rows: Any, head: Any, group: Any, dim: Any) -> None:
    """Read the state after the earlier groups of partitions."""
    num_rows = rows.shape[0] * group
    max_scores, sum_exps, accs, lines = tile.max_scores, tile.sum_exps, tile.accs, tile.lines
    stored_max, stored_sum, stored_acc = state
    for start in range(0, num_rows, BLOCK_ROWS):
        for row in range(start, min(start + BLOCK_ROWS, num_rows)):
            token, q_head = rows[row // group], head * group + row % group
            max_scores[row] = stored_max[token, q_head]
            sum_exps[row] = stored_sum[token, q_head]
            source = stored_acc[token, q_head]
            target = lines[(row - start) * dim : (row - start + 1) * dim]
            for d in range(source.shape[0]):
                target[d] = source[d]
            fill(target, source.shape[0])  # the memory is that of the task before
        _transpose(lines, 0, BLOCK_ROWS, dim, accs, start * dim)


@inlined()
def store_state(tile: Any, state: Any, rows: Any, head: Any, group: Any, dim: Any) -> None:
    """Write the state for a later group of partitions or for decoding."""
    num_rows = rows.shape[0] * group
    max_scores, sum_exps, accs, lines = tile.max_scores, tile.sum_exps, tile.accs, tile.lines
    stored_max, stored_sum, stored_acc = state
    for start in range(0, num_rows, BLOCK_ROWS):
        _transpose(accs, start * dim, dim, BLOCK_ROWS, lines, 0)
        for row in range(start, min(start + BLOCK_ROWS, num_rows)):
            token, q_head = rows[row // group], head * group + row % group
            stored_max[token, q_head] = max_scores[row]
            stored_sum[token, q_head] = sum_exps[row]
            source = lines[(row - start) * dim : (row - start + 1) * dim]
            target = stored_acc[token, q_head]
            for d in range(target.shape[0]):
                target[d] = source[d]


@inlined()
def add_tile_sinks(tile: Any, sinks: Any, num_rows: Any, head: Any, group: Any) -> None:
    """Add the sinks of the rows' heads, in base 2, to the sums of weights."""
    max_scores, sum_exps, lines = tile.max_scores, tile.sum_exps, tile.lines
    for start in range(0, num_rows, BLOCK_ROWS):
        for row in range(BLOCK_ROWS):
            lines[row] = sinks[head * group + (start + row) % group]
        block = slice(start, start + BLOCK_ROWS)
        for half in range(0, BLOCK_ROWS, _LANES):
            add_sinks(lines, half, max_scores[block], sum_exps[block])


@inlined()
def write_results(tile: Any, rows: Any, head: Any, group: Any, dim: Any, out: Any) -> None:
    """Write `accs / sum_exps` to `out`, in its dtype."""
    num_rows = rows.shape[0] * group
    sum_exps, accs, lines = tile.sum_exps, tile.accs, tile.lines
    for start in range(0, num_rows, BLOCK_ROWS):
        own = accs[start * dim : (start + BLOCK_ROWS) * dim]
        for half in range(0, BLOCK_ROWS, _LANES):
            normalize_acc(own, half, sum_exps[start : start + BLOCK_ROWS])
        _transpose(own, 0, dim, BLOCK_ROWS, lines, 0)
        place, member = start // group, start % group
        for row in range(min(BLOCK_ROWS, num_rows - start)):
            source = lines[row * dim : (row + 1) * dim]
            target = out[rows[place], head * group + member]
            for d in range(target.shape[0]):
                target[d] = from_float32(source[d], out)
            place, member = _following(place, member, group)


@inlined()
def _transpose(
    source: Any, start: Any, num_rows: Any, num_columns: Any, target: Any, target_start: Any
) -> None:
    """Transpose [num_rows, num_columns] words; both are multiples of 16.

    The source may have two elements to a word.
    """
    elements = 4 // source.itemsize
    for row in range(0, num_rows, _LANES):
        for column in range(0, num_columns, _LANES):
            transpose_words(
                source,
                start + (row * num_columns + column) * elements,
                num_columns * elements,
                target,
                target_start + column * num_rows + row,
                num_rows,
            )


_MINUS_INFINITY = np.float32(-np.inf)
_LOWEST = np.float32(-3.0e38)  # every score is above it
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


@inlined(fastmath=EXACT)
def mask_scores(scores: Any, half: Any, lows: Any, highs: Any, first: Any, num_tokens: Any) -> None:
    """Set scores of tokens `first` on to -inf but where low <= token < high.

    lows, highs: [32] float32, relative to the beginning of the partition.
    """
    low, high, nothing = load(lows, half), load(highs, half), splat(_MINUS_INFINITY)
    for token in range(first, num_tokens):
        place = token * BLOCK_ROWS + half
        number = splat(np.float32(token))
        seen = where_less(number, high, load(scores, place), nothing)
        store(scores, place, where_less(number, low, nothing, seen))


@inlined(fastmath=EXACT)
def cap_scores(scores: Any, half: Any, num_tokens: Any, scale: Any, softcap: Any) -> None:
    """Replace scores by `softcap * tanh(score * scale / softcap)`; tanh x = 1 - 2 / (e^2x + 1)."""
    factor = splat(_TWO * LOG2_E * scale / softcap)
    one, two, limit = splat(_ONE), splat(_TWO), splat(softcap)
    for token in range(num_tokens):
        place = token * BLOCK_ROWS + half
        power = exp2_lanes(smaller(splat(HIGH), load(scores, place) * factor))
        store(scores, place, limit * (one - two / (power + one)))


@inlined(fastmath=EXACT)
def update_softmax(
    scores: Any,
    half: Any,
    num_tokens: Any,
    scale: Any,
    max_scores: Any,
    sum_exps: Any,
    accs: Any,
    factors: Any,
    weights: Any,
    products: Any,
) -> None:
    """Replace scores by weights relative to the largest score so far, and update the state.

    half: 0 for the first sixteen rows, 16 for the others. num_tokens: an even number. scale:
    log2(e) included. accs: [dim, 32] float32, rescaled to the new largest score. factors: the
    scales of the values, which multiply the stored weights. products: see `attend_tiles`. A NaN
    score gives a NaN sum.
    """
    old = load(max_scores, half)
    best, other = splat(_MINUS_INFINITY), splat(_MINUS_INFINITY)
    for token in range(0, num_tokens, 2):
        best = larger(load(scores, token * BLOCK_ROWS + half), best)
        other = larger(load(scores, (token + 1) * BLOCK_ROWS + half), other)
    factor = splat(scale)
    max_score = larger(larger(best, other) * factor, old)
    store(max_scores, half, max_score)
    # Rows without a visible key: any finite number in place of -inf.
    base = where_less(max_score, splat(_LOWEST), splat(_ZERO), max_score)
    minus = splat(_ZERO) - base
    even_sum, odd_sum = splat(_ZERO), splat(_ZERO)
    for token in range(0, num_tokens, 2):
        even = products.power(fused(load(scores, token * BLOCK_ROWS + half), factor, minus))
        odd = products.power(fused(load(scores, (token + 1) * BLOCK_ROWS + half), factor, minus))
        even_sum, odd_sum = even_sum + even, odd_sum + odd
        even, odd = scaled(even, factors, token), scaled(odd, factors, token + 1)
        products.store_weights(weights, token, half, even, odd)
    fading = exp2_lanes(old - base)
    store(sum_exps, half, fused(load(sum_exps, half), fading, even_sum + odd_sum))
    if any_less(fading, splat(_ONE)):
        for d in range(accs.shape[0] // BLOCK_ROWS):
            place = d * BLOCK_ROWS + half
            store(accs, place, load(accs, place) * fading)


@inlined(fastmath=EXACT)
def add_sinks(sinks: Any, half: Any, max_scores: Any, sum_exps: Any) -> None:
    """Add the weight of a score [32] without a value, in base 2, to the sums."""
    power = smaller(splat(HIGH), load(sinks, half) - load(max_scores, half))
    store(sum_exps, half, load(sum_exps, half) + exp2_lanes(power))


@inlined(fastmath=EXACT)
def normalize_acc(accs: Any, half: Any, sum_exps: Any) -> None:
    """Divide accs [dim * 32] by the sums of weights.

    A row with any number that is not finite becomes NaN; -0 becomes 0, so that the bits do not
    depend on the number of zeros added.
    """
    inverse, zero = splat(_ONE) / load(sum_exps, half), splat(_ZERO)
    spoilt = zero
    for d in range(accs.shape[0] // BLOCK_ROWS):
        spoilt = fused(load(accs, d * BLOCK_ROWS + half), zero, spoilt)
    for d in range(accs.shape[0] // BLOCK_ROWS):
        place = d * BLOCK_ROWS + half
        store(accs, place, fused(load(accs, place), inverse, spoilt))
