"""Factors: the scales of a partition's tokens, where keys and values are codes.

Codes enter the products as they are, exact in any format; the scale of a key then multiplies its
scores, that of a value the weights of its token. Where a cache is not quantised there are no
factors, None, and what is done with them costs nothing.
"""

from typing import Any

import numpy as np
from numba.extending import overload

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.kernels.cpu.attention.operands import BLOCK_ROWS
from pagedrun.kernels.cpu.bfloat16 import are_codes
from pagedrun.kernels.cpu.jit import EXACT, part
from pagedrun.kernels.cpu.simd.lanes import NUM_LANES, load, splat, store
from pagedrun.kernels.cpu.simd.prefetch import prefetch_lines

_prefetch_line = prefetch_lines(1, 1)


def factors_for(cache: Any) -> Any:
    """Inside kernels: memory [partition] for the factors of a cache, None if it needs none."""
    raise NotImplementedError("only compiled code calls this")


@overload(factors_for, strict=False)
def _overload_factors_for(cache: Any) -> Any:
    if are_codes(cache):
        return lambda cache: np.zeros(PARTITION_TOKENS, np.float32)
    return lambda cache: None


@part()
def read_factors(scales: Any, table: Any, head: Any, start: Any, end: Any, factors: Any) -> None:
    """Copy the scales of positions start .. end - 1 of one head, zeros behind them."""
    if factors is None:
        return
    block_size = scales.shape[2]
    position = start
    while position < end:
        block, offset = table[position // block_size], position % block_size
        run = min(block_size - offset, end - position)
        source = scales[block, head, offset : offset + run]
        target = factors[position - start : position - start + run]
        for i in range(run):
            target[i] = source[i]
        position += run
    for i in range(end - start, factors.shape[0]):
        factors[i] = 0


@part()
def prefetch_factors(scales: Any, table: Any, head: Any, start: Any, end: Any) -> None:
    """Ask for the scales of positions start .. end - 1, a partition at most; `start` begins it."""
    if scales.shape[0] == 0:
        return
    num_kv_heads, block_size = scales.shape[1], scales.shape[2]
    for position in range(start, end, min(block_size, NUM_LANES)):
        block, offset = np.int64(table[position // block_size]), position % block_size
        _prefetch_line(scales, (block * num_kv_heads + head) * block_size + offset)


@part(fastmath=EXACT)
def scale_scores(scores: Any, half: Any, num_tokens: Any, factors: Any) -> None:
    """Multiply the scores [partition * 32] of each token by its factor."""
    if factors is None:
        return
    for token in range(num_tokens):
        place = token * BLOCK_ROWS + half
        store(scores, place, load(scores, place) * splat(factors[token]))


@part(fastmath=EXACT)
def scaled(weight: Any, factors: Any, token: Any) -> Any:
    """Return the weights of a token, Lanes, times its factor."""
    if factors is None:
        return weight
    return weight * splat(factors[token])


@part()
def factor_is_finite(factors: Any, token: Any) -> Any:
    """Return whether a token's factor is finite, if there are any."""
    if factors is None:
        return True
    return np.isfinite(factors[token])


@part()
def factors_are_finite(factors: Any) -> Any:
    """Return whether all factors are finite, if there are any."""
    if factors is None:
        return True
    finite = True
    for token in range(factors.shape[0]):
        finite &= np.isfinite(factors[token])
    return finite


@part()
def drop_factor(factors: Any, token: Any) -> None:
    """Make a token's factor 0, if there are any."""
    if factors is None:
        return
    factors[token] = 0
