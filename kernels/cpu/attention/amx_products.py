"""Products of attention on AMX tiles: bfloat16 keys, queries, values and weights.

The three modules of products have the same functions. Keys and values lie in `source`, a flat
array: sixteen tokens from each of `places` on, [partition / 16] int64, `stride` elements apart.
dim: the padded head size. queries: [num_blocks * words of a row * 32]. scores: [partition * 32].
weights: those of a partition, in the layout of `store_weights`. accs: [num_blocks * dim * 32]
float32. `both`: True for a block of more than sixteen rows.
"""

from typing import Any

from pagedrun.kernels.cpu.attention.partitions import readable
from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd import amx
from pagedrun.kernels.cpu.simd.lanes import exp2_lanes_for_bfloat16
from pagedrun.kernels.cpu.simd.words import store_pairs, transpose_pairs
from pagedrun.kernels.partition import PARTITION_TOKENS

TILE_TOKENS = 16
_COLUMNS = 32
_STEP = 32  # terms of a sum that a tile holds
_FLOATS_ROW = 4 * _COLUMNS  # bytes


@inlined()
def reads_in_place(cache: Any) -> Any:
    """Return True if tiles can be loaded from the cache without a copy."""
    return cache.itemsize == 2 and cache.shape[2] % TILE_TOKENS == 0 and cache.shape[3] % _STEP == 0


@inlined()
def operand_source(cache: Any, copy: Any, in_place: Any) -> Any:
    """Return the flat array of keys or values: the cache, or the copy of a partition."""
    return readable(cache, copy, in_place)


@inlined()
def pack_values(source: Any, places: Any, stride: Any, dim: Any, packed: Any) -> None:
    """Transpose the values of a partition to [dim * partition]."""
    for tile in range(0, places.shape[0], 2):
        for d in range(0, dim, TILE_TOKENS):
            transpose_pairs(
                source,
                places[tile] + d,
                places[tile + 1] + d,
                stride,
                packed,
                d * PARTITION_TOKENS + tile * TILE_TOKENS,
                PARTITION_TOKENS,
            )


@inlined()
def multiply_keys(
    source: Any,
    places: Any,
    stride: Any,
    dim: Any,
    queries: Any,
    block: Any,
    num_tokens: Any,
    scores: Any,
    both: Any,
) -> None:
    """Write the products of the first keys with a block of queries."""
    for tile in range(0, num_tokens // TILE_TOKENS, 2):
        a0, a1, b = places[tile], places[tile + 1], block * dim // 2 * _COLUMNS
        c = tile * TILE_TOKENS * _COLUMNS
        amx.zero_sums()
        for _ in range(dim // _STEP):
            amx.load_b0(queries, b, _FLOATS_ROW)
            amx.load_a0(source, a0, 2 * stride)
            amx.load_a1(source, a1, 2 * stride)
            amx.dot_00()
            amx.dot_10()
            if both:
                amx.load_b1(queries, b + 16, _FLOATS_ROW)
                amx.dot_01()
                amx.dot_11()
            a0 += _STEP
            a1 += _STEP
            b += _STEP // 2 * _COLUMNS
        amx.store_00(scores, c, _FLOATS_ROW)
        amx.store_10(scores, c + 16 * _COLUMNS, _FLOATS_ROW)
        if both:
            amx.store_01(scores, c + 16, _FLOATS_ROW)
            amx.store_11(scores, c + 16 * _COLUMNS + 16, _FLOATS_ROW)


@inlined()
def multiply_values(
    packed: Any,
    dim: Any,
    weights: Any,
    accs: Any,
    block: Any,
    num_tokens: Any,
    both: Any,
) -> None:
    """Add the products of the first values with the weights to the accs of a block."""
    for d in range(0, dim, 32):
        c = (block * dim + d) * _COLUMNS
        amx.load_00(accs, c, _FLOATS_ROW)
        amx.load_10(accs, c + 16 * _COLUMNS, _FLOATS_ROW)
        if both:
            amx.load_01(accs, c + 16, _FLOATS_ROW)
            amx.load_11(accs, c + 16 * _COLUMNS + 16, _FLOATS_ROW)
        a, b = d * PARTITION_TOKENS, 0
        for _ in range(num_tokens // _STEP):
            amx.load_b0(weights, b, _FLOATS_ROW)
            amx.load_a0(packed, a, 2 * PARTITION_TOKENS)
            amx.load_a1(packed, a + 16 * PARTITION_TOKENS, 2 * PARTITION_TOKENS)
            amx.dot_00()
            amx.dot_10()
            if both:
                amx.load_b1(weights, b + 16, _FLOATS_ROW)
                amx.dot_01()
                amx.dot_11()
            a += _STEP
            b += _STEP // 2 * _COLUMNS
        amx.store_00(accs, c, _FLOATS_ROW)
        amx.store_10(accs, c + 16 * _COLUMNS, _FLOATS_ROW)
        if both:
            amx.store_01(accs, c + 16, _FLOATS_ROW)
            amx.store_11(accs, c + 16 * _COLUMNS + 16, _FLOATS_ROW)


@inlined(fastmath=EXACT)
def power(x: Any) -> Any:
    """Return 2^x to the precision of stored weights."""
    return exp2_lanes_for_bfloat16(x)


@inlined()
def store_weights(weights: Any, token: Any, half: Any, even: Any, odd: Any) -> None:
    """Store the weights of tokens `token` and `token + 1` for one half of a block."""
    store_pairs(weights, token // 2 * _COLUMNS + half, even, odd)
