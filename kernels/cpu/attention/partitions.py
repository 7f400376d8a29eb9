"""Keys, values and scales of one partition, read from the blocks.

Codes of a quantized cache enter the products unchanged, exact in any format; the scale of a key
multiplies its scores, that of a value the weights of its token. These scales are the factors of a
partition. A cache that is not quantized has None for factors, at no cost.
"""

from typing import Any

import numpy as np
from numba.extending import overload

from pagedrun.kernels.cpu.attention.inputs import BLOCK_ROWS
from pagedrun.kernels.cpu.bfloat16 import as_operand, is_quantized
from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd.arrays import prefetch_lines, prefetch_row
from pagedrun.kernels.cpu.simd.lanes import NUM_LANES, load, splat, store
from pagedrun.kernels.partition import PARTITION_TOKENS

_SIGN_OFF = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)  # from here on: infinity and NaN
_SIGN_OFF_16 = np.uint16(0x7FFF)
_INFINITY_16 = np.uint16(0x7F80)


@inlined()
def gather(
    blocks: Any,
    table: Any,
    head: Any,
    start: Any,
    end: Any,
    next_start: Any,
    out: Any,
    stride: Any,
) -> None:
    """Copy positions start .. end - 1 of one head to a partition in `out`, followed by zeros.

    blocks: as in a `Cache`; codes are copied without their scales. out: [partition * stride],
    bfloat16 or float32. The block of position `next_start` is prefetched, unless it is negative.
    """
    block_size, head_dim = blocks.shape[2], blocks.shape[3]
    position = start
    while position < end:
        block, offset = table[position // block_size], position % block_size
        run = min(block_size - offset, end - position)
        for i in range(run):
            place = (position - start + i) * stride
            source, target = blocks[block, head, offset + i], out[place : place + stride]
            for d in range(head_dim):
                target[d] = as_operand(source[d], out)
            fill(target, head_dim)
        position += run
    if next_start >= 0:
        _prefetch_rows(blocks, table, head, next_start, next_start + end - start)
    fill(out, (end - start) * stride)


@inlined()
def fill(array: Any, start: Any) -> None:
    """Write zeros to a flat array from index `start` on."""
    rest = array[start:]
    for i in range(rest.shape[0]):
        rest[i] = 0


@inlined()
def prefetch_partition(cache: Any, table: Any, head: Any, start: Any) -> None:
    """Prefetch the partition that begins at position `start`."""
    _prefetch_rows(cache, table, head, start, start + PARTITION_TOKENS)


@inlined()
def _prefetch_rows(cache: Any, table: Any, head: Any, start: Any, end: Any) -> None:
    """Prefetch positions start .. end - 1 of one head."""
    block_size, position = cache.shape[2], start
    while position < end:
        block, offset = table[position // block_size], position % block_size
        run = min(block_size - offset, end - position)
        for i in range(offset, offset + run):
            prefetch_row(cache, block, head, i)
        position += run


def readable(cache: Any, copy: Any, in_place: Any) -> Any:
    """Inside kernels: return the flat array to read, the cache or a copy of a partition.

    Codes are never read `in_place`.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(readable, strict=False)
def _overload_readable(cache: Any, copy: Any, in_place: Any) -> Any:
    if is_quantized(cache):
        return lambda cache, copy, in_place: copy
    return lambda cache, copy, in_place: cache if in_place else copy


@inlined()
def confine_nans(keys: Any, values: Any, key_factors: Any, value_factors: Any, stride: Any) -> None:
    """Replace keys of tokens with numbers that are not finite by NaN, and their values by 0.

    A query that sees the key gets a NaN score, hence NaN; the mask hides it from the others. A NaN
    value would give NaN in spite of a weight of 0: a token of the prompt would corrupt earlier
    tokens, and with them the blocks shared with other rows.
    """
    all_factors = factors_are_finite(key_factors) and factors_are_finite(value_factors)
    if all_factors and _all_finite(keys) and _all_finite(values):
        return
    for start in range(0, keys.shape[0], stride):
        key, value = keys[start : start + stride], values[start : start + stride]
        token = start // stride
        numbers = _all_finite(key) and _all_finite(value)
        factors = factor_is_finite(key_factors, token) and factor_is_finite(value_factors, token)
        if not (numbers and factors):
            for d in range(stride):
                key[d] = _nan(keys)
                value[d] = 0
            clear_factor(value_factors, token)


def _all_finite(vector: Any) -> Any:
    """Inside kernels: return True if a vector of float32 or bfloat16 bits is finite."""
    raise NotImplementedError("only compiled code calls this")


@overload(_all_finite, strict=False)
def _overload_all_finite(vector: Any) -> Any:
    # Compared as integers, which LLVM vectorizes.
    if vector.dtype.bitwidth == 16:

        def halves_are_finite(vector: Any) -> Any:
            largest = np.uint16(0)
            for d in range(vector.shape[0]):
                largest = max(largest, np.uint16(vector[d] & _SIGN_OFF_16))
            return largest < _INFINITY_16

        return halves_are_finite

    def floats_are_finite(vector: Any) -> Any:
        largest = np.int32(0)
        for d in range(vector.shape[0]):
            largest = max(largest, np.int32(np.float32(vector[d]).view(np.int32) & _SIGN_OFF))
        return largest < _INFINITY

    return floats_are_finite


def _nan(like: Any) -> Any:
    """Inside kernels: return NaN in the dtype of array `like`."""
    raise NotImplementedError("only compiled code calls this")


@overload(_nan, strict=False)
def _overload_nan(like: Any) -> Any:
    if like.dtype.bitwidth == 16:
        return lambda like: np.uint16(0x7FC0)
    return lambda like: np.float32(np.nan)


_prefetch_line = prefetch_lines(1, 1)


def factors_for(cache: Any) -> Any:
    """Inside kernels: return memory [partition] for the factors of a cache, None without scales."""
    raise NotImplementedError("only compiled code calls this")


@overload(factors_for, strict=False)
def _overload_factors_for(cache: Any) -> Any:
    if is_quantized(cache):
        return lambda cache: np.zeros(PARTITION_TOKENS, np.float32)
    return lambda cache: None


@inlined()
def read_factors(scales: Any, table: Any, head: Any, start: Any, end: Any, factors: Any) -> None:
    """Copy the scales of positions start .. end - 1 of one head, followed by zeros."""
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


@inlined()
def prefetch_factors(scales: Any, table: Any, head: Any, start: Any, end: Any) -> None:
    """Prefetch the scales of positions start .. end - 1, at most the partition from `start` on."""
    if scales.shape[0] == 0:
        return
    num_kv_heads, block_size = scales.shape[1], scales.shape[2]
    for position in range(start, end, min(block_size, NUM_LANES)):
        block, offset = np.int64(table[position // block_size]), position % block_size
        _prefetch_line(scales, (block * num_kv_heads + head) * block_size + offset)


@inlined(fastmath=EXACT)
def scale_scores(scores: Any, half: Any, num_tokens: Any, factors: Any) -> None:
    """Multiply the scores [partition * 32] of each token by its factor."""
    if factors is None:
        return
    for token in range(num_tokens):
        place = token * BLOCK_ROWS + half
        store(scores, place, load(scores, place) * splat(factors[token]))


@inlined(fastmath=EXACT)
def scaled(weight: Any, factors: Any, token: Any) -> Any:
    """Return the weights (Lanes) of a token times its factor."""
    if factors is None:
        return weight
    return weight * splat(factors[token])


@inlined()
def factor_is_finite(factors: Any, token: Any) -> Any:
    """Return True if a token's factor is finite, or there are no factors."""
    if factors is None:
        return True
    return np.isfinite(factors[token])


@inlined()
def factors_are_finite(factors: Any) -> Any:
    """Return True if all factors are finite, or there are none."""
    if factors is None:
        return True
    finite = True
    for token in range(factors.shape[0]):
        finite &= np.isfinite(factors[token])
    return finite


@inlined()
def clear_factor(factors: Any, token: Any) -> None:
    """Set a token's factor to 0, if there are factors."""
    if factors is None:
        return
    factors[token] = 0
