"""What prefill attention does between its two matrix products, for one partition of the context.

Shapes: a batch has `num_tiles` tiles of `num_rows` rows; row `token * group + g` of a tile is query
`token` and head `g` of the group of query heads that read one kv head. places: [num_tiles, 5]
int64, for each tile its first row in `q`, its number of tokens, the position of its first token,
the position after the last token of its chunk, and its row in the block tables. state: [2,
num_kv_heads, num_tiles, num_rows] float32, largest score (a power of two) and sum of weights; a sum
of 0 marks a row that has seen no key.
"""

from typing import Any

import numba
import numpy as np

from pagedrun.kernels.cpu.bfloat16 import from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import exp2
from pagedrun.kernels.cpu.jit import kernel, part
from pagedrun.kernels.cpu.softmax import weigh

_UNSIGNED = np.int32(0x7FFFFFFF)  # a float32's bits without its sign
_INFINITY = np.int32(0x7F800000)  # from here on: infinity and NaN


@kernel
def pack_queries(q: Any, places: Any, queries: Any) -> None:
    """Copy queries [tokens, heads, dim] to [num_kv_heads, num_tiles, num_rows, dim] float32."""
    num_kv_heads, num_tiles = queries.shape[:2]
    group = q.shape[1] // num_kv_heads
    for task in numba.prange(num_kv_heads * num_tiles):
        head, tile = task // num_tiles, task % num_tiles
        first = places[tile, 0]
        for token in range(places[tile, 1]):
            for g in range(group):
                for d in range(q.shape[2]):
                    value = to_float32(q[first + token, head * group + g, d])
                    queries[head, tile, token * group + g, d] = value


@kernel
def gather(
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    places: Any,
    start: Any,
    keys: Any,
    values: Any,
) -> None:
    """Copy one partition of each tile's context to [num_kv_heads * num_tiles, partition, dim].

    Positions from the end of the chunk on become zeros: their slots may hold anything, and even a
    weight of 0 would let a NaN through.
    """
    num_tiles = places.shape[0]
    for task in numba.prange(keys.shape[0]):
        head, tile = task // num_tiles, task % num_tiles
        table = block_tables[places[tile, 4]]
        end = max(start, min(places[tile, 3], start + keys.shape[1]))
        _gather_one(key_cache, table, head, start, end, keys[task])
        _gather_one(value_cache, table, head, start, end, values[task])
        _spoil(keys[task], values[task])


@part()
def _spoil(keys: Any, values: Any) -> None:
    """Move what is not finite in a key or a value to its key alone, where the mask can stop it.

    A query that sees the key gets a NaN score, hence NaN. One that does not gives it a weight of 0,
    which a NaN value would turn into NaN all the same: an earlier token of the prompt would be
    spoiled by a later one, and with it the blocks that other rows share.
    """
    for i in range(values.shape[0]):
        if _magnitude(keys[i]) >= _INFINITY or _magnitude(values[i]) >= _INFINITY:
            keys[i] = np.float32(np.nan)
            values[i] = np.float32(0.0)


@part()
def _magnitude(vector: Any) -> Any:
    """Return the bits of the largest magnitude in a float32 vector; NaN is above infinity."""
    largest = np.int32(0)
    for d in range(vector.shape[0]):
        largest = max(largest, np.int32(np.float32(vector[d]).view(np.int32) & _UNSIGNED))
    return largest


@part()
def _gather_one(cache: Any, table: Any, head: Any, start: Any, end: Any, out: Any) -> None:
    block_size = cache.shape[2]
    for position in range(start, end):
        block, offset = table[position // block_size], position % block_size
        for d in range(cache.shape[3]):
            out[position - start, d] = to_float32(cache[block, head, offset, d])
    out[end - start :] = np.float32(0.0)


@kernel
def weigh_rows(
    scores: Any, places: Any, group: Any, start: Any, window: Any, scale: Any, part_state: Any
) -> None:
    """Turn the scores of one partition into softmax weights, in place; invisible keys weigh 0.

    scores: [num_kv_heads, num_tiles, num_rows, partition] float32. window: 0 for none. scale:
    log2(e) included. Rows that see no key of the partition keep their scores and get a sum of 0.
    """
    num_kv_heads, num_tiles, num_rows, width = scores.shape
    for task in numba.prange(num_kv_heads * num_tiles * num_rows):
        head, tile = task // (num_tiles * num_rows), task // num_rows % num_tiles
        row = task % num_rows
        position = places[tile, 2] + row // group
        low = max(0, position - window + 1 - start) if window > 0 else 0
        high = min(width, position + 1 - start)
        weights = scores[head, tile, row]
        peak, mass = np.float32(0.0), np.float32(0.0)
        if low < high and row < places[tile, 1] * group:
            peak, mass = _weigh_row(weights, low, high, scale)
        part_state[0, head, tile, row], part_state[1, head, tile, row] = peak, mass


@part()
def _weigh_row(weights: Any, low: Any, high: Any, scale: Any) -> Any:
    peak, mass = weigh(weights[low:high], scale)
    for i in range(low):
        weights[i] = np.float32(0.0)
    for i in range(high, weights.shape[0]):
        weights[i] = np.float32(0.0)
    return peak, mass


@kernel
def merge(partial: Any, part_state: Any, total: Any, state: Any) -> None:
    """Merge one partition's results into the running ones.

    partial, total: [num_kv_heads, num_tiles, num_rows, dim] float32, relative to the largest score
    of the partition, or so far. A row whose partition has a sum of 0 stays as it is.
    """
    num_kv_heads, num_tiles, num_rows = total.shape[:3]
    for task in numba.prange(num_kv_heads * num_tiles * num_rows):
        head, tile = task // (num_tiles * num_rows), task // num_rows % num_tiles
        row = task % num_rows
        if part_state[1, head, tile, row] != 0:
            _merge_row(
                partial[head, tile, row],
                part_state[:, head, tile, row],
                total[head, tile, row],
                state[:, head, tile, row],
            )


@part()
def _merge_row(partial: Any, part_state: Any, total: Any, state: Any) -> None:
    peak, old, new = part_state[0], np.float32(0.0), np.float32(1.0)
    if state[1] != 0:
        peak = max(state[0], part_state[0])
        old, new = exp2(state[0] - peak), exp2(part_state[0] - peak)
    state[0] = peak
    state[1] = state[1] * old + part_state[1] * new
    for d in range(total.shape[0]):
        total[d] = total[d] * old + partial[d] * new


@kernel
def write_rows(total: Any, state: Any, places: Any, out: Any) -> None:
    """Write `total / sum of weights` to [tokens, heads, dim], in the dtype of `out`."""
    num_kv_heads, num_tiles = total.shape[:2]
    group = out.shape[1] // num_kv_heads
    for task in numba.prange(num_kv_heads * num_tiles):
        head, tile = task // num_tiles, task % num_tiles
        first = places[tile, 0]
        for token in range(places[tile, 1]):
            for g in range(group):
                row = token * group + g
                inverse = np.float32(1.0) / state[1, head, tile, row]
                for d in range(out.shape[2]):
                    value = total[head, tile, row, d] * inverse
                    out[first + token, head * group + g, d] = from_float32(value, out)
