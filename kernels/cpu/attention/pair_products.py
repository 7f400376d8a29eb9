"""Products of attention on pairs of bfloat16 (`vdpbf16ps`); see `amx_products`."""

from typing import Any

from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd.block_product import ROWS, block_product
from pagedrun.kernels.cpu.simd.lanes import exp2_lanes_for_bfloat16
from pagedrun.kernels.cpu.simd.words import store_pairs
from pagedrun.kernels.partition import PARTITION_TOKENS

_COLUMNS = 32
_one_half, _both_halves = block_product(ROWS, 1), block_product(ROWS, 2)
_begin_half, _begin_both = (block_product(ROWS, each, begins=True) for each in (1, 2))


@inlined()
def reads_in_place(cache: Any) -> Any:
    """Return False: reading single numbers of a row is faster from a copy."""
    return False


@inlined()
def operand_source(cache: Any, copy: Any, in_place: Any) -> Any:
    """Return the copy of a partition."""
    return copy


@inlined()
def pack_values(source: Any, places: Any, stride: Any, dim: Any, packed: Any) -> None:
    """Interleave the values of every two tokens to [partition / 2 * dim * 2]."""
    for pair in range(PARTITION_TOKENS // 2):
        start = places[0] + 2 * pair * stride
        even, odd = source[start : start + stride], source[start + stride : start + 2 * stride]
        target = packed[2 * pair * dim : 2 * (pair + 1) * dim]
        for d in range(dim):
            target[2 * d] = even[d]
            target[2 * d + 1] = odd[d]


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
    b, pairs = block * dim // 2 * _COLUMNS, dim // 2
    for token in range(0, num_tokens, ROWS):
        a, c = places[0] + token * stride, token * _COLUMNS
        if both:
            _begin_both(source, a, stride, 2, queries, b, _COLUMNS, pairs, scores, c, _COLUMNS)
        else:
            _begin_half(source, a, stride, 2, queries, b, _COLUMNS, pairs, scores, c, _COLUMNS)


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
    pairs = num_tokens // 2
    for d in range(0, dim, ROWS):
        c = (block * dim + d) * _COLUMNS
        if both:
            _both_halves(packed, 2 * d, 2, 2 * dim, weights, 0, _COLUMNS, pairs, accs, c, _COLUMNS)
        else:
            _one_half(packed, 2 * d, 2, 2 * dim, weights, 0, _COLUMNS, pairs, accs, c, _COLUMNS)


@inlined(fastmath=EXACT)
def power(x: Any) -> Any:
    """Return 2^x to the precision of stored weights."""
    return exp2_lanes_for_bfloat16(x)


@inlined()
def store_weights(weights: Any, token: Any, half: Any, even: Any, odd: Any) -> None:
    """Store the weights of tokens `token` and `token + 1` for one half of a block."""
    store_pairs(weights, token // 2 * _COLUMNS + half, even, odd)
