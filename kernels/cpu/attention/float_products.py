"""Products of attention in float32, on any processor; see `amx_products`."""

from typing import Any

from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd.block_product import ROWS, block_product
from pagedrun.kernels.cpu.simd.lanes import exp2_lanes, store

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
    """Do nothing: `packed` is the memory of the values."""


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
    b = block * dim * _COLUMNS
    for token in range(0, num_tokens, ROWS):
        a, c = places[0] + token * stride, token * _COLUMNS
        if both:
            _begin_both(source, a, stride, 1, queries, b, _COLUMNS, dim, scores, c, _COLUMNS)
        else:
            _begin_half(source, a, stride, 1, queries, b, _COLUMNS, dim, scores, c, _COLUMNS)


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
    for d in range(0, dim, ROWS):
        c = (block * dim + d) * _COLUMNS
        if both:
            _both_halves(packed, d, 1, dim, weights, 0, _COLUMNS, num_tokens, accs, c, _COLUMNS)
        else:
            _one_half(packed, d, 1, dim, weights, 0, _COLUMNS, num_tokens, accs, c, _COLUMNS)


@inlined(fastmath=EXACT)
def power(x: Any) -> Any:
    """Return 2^x to the precision of stored weights."""
    return exp2_lanes(x)


@inlined()
def store_weights(weights: Any, token: Any, half: Any, even: Any, odd: Any) -> None:
    """Store the weights of tokens `token` and `token + 1` for one half of a block."""
    store(weights, token * _COLUMNS + half, even)
    store(weights, (token + 1) * _COLUMNS + half, odd)
