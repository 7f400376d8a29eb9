"""A tile of weights out of its codes, with the numbers that the whole matrix would have."""

from typing import Any

import triton
import triton.language as tl

from pagedrun.kernels.gpu.matrix_product import INTERPRETED

_FLOAT4, _FLOAT8 = tl.constexpr(1), tl.constexpr(2)  # as `code_tensors` has them
# 2^23: a float32 from there on has the whole number less 2^23 in its lowest bits.
_WHOLE_BITS, _WHOLE = tl.constexpr(0x4B000000), tl.constexpr(8388608.0)
# What the bits of the two float formats, moved to where float32 has these, are less by.
_FLOAT4_FACTOR, _FLOAT8_FACTOR = tl.constexpr(2.0**126), tl.constexpr(2.0**120)


@triton.jit
def unpack_tile(
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    like,
    step,
    columns,
    out_features,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    STEP: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> Any:
    """Return the weights [COLUMNS, STEP] of a step's inputs, in the dtype of what `like` points to.

    `(code - zero) * scale - minimum`, in float32 and rounded once; see `CodeTensors`. columns:
    [COLUMNS] outputs, all below out_features. A launch must not fuse products and sums.
    """
    if KIND == _FLOAT8 or KIND == 8:
        codes = _fields(words, step, columns, out_features, 8, STEP, COLUMNS)
    else:
        codes = _fields(words, step, columns, out_features, 4, STEP, COLUMNS)
        if above is not None:
            upper = _fields(above, step, columns, out_features, KIND - 4, STEP, COLUMNS)
            codes = codes | (upper << 4)
    codes = tl.reshape(codes, (COLUMNS, STEP // SPAN, SPAN))
    groups = tl.zeros((STEP // SPAN,), tl.int32)
    if GROUP > 0:
        groups = (step * STEP + tl.arange(0, STEP // SPAN) * SPAN) // GROUP
        groups = tl.minimum(groups, num_groups - 1)  # behind the last input there are no more
    at = groups[None, :].to(tl.int64) * out_features + columns[:, None]
    factors_at = (groups // NEIGHBOURS)[None, :].to(tl.int64) * out_features + columns[:, None]
    if KIND == _FLOAT8:
        moved = ((codes & 0x7F) << 20) | ((codes & 0x80) << 24)
        numbers = moved.to(tl.float32, bitcast=True) * _FLOAT8_FACTOR
    elif KIND == _FLOAT4:
        moved = ((codes & 7) << 22) | ((codes & 8) << 28)
        numbers = moved.to(tl.float32, bitcast=True) * _FLOAT4_FACTOR
    else:
        numbers = (codes | _WHOLE_BITS).to(tl.float32, bitcast=True)
        if zeros is not None:
            less = tl.load(zeros + at).to(tl.float32) + (_WHOLE + OFFSET)
            numbers = numbers - less[:, :, None]
        else:
            numbers = numbers - (_WHOLE + OFFSET)
    numbers = numbers * _group_numbers(scales, factors, at, factors_at)[:, :, None]
    if minima is not None:
        numbers = numbers - _group_numbers(minima, minimum_factors, at, factors_at)[:, :, None]
    return rounded(tl.reshape(numbers, (COLUMNS, STEP)), like)


@triton.jit
def rounded(numbers, like) -> Any:
    """Return float32 numbers in the dtype of what `like` points to, halves to even."""
    if INTERPRETED and like.dtype.element_ty == tl.bfloat16:
        # It would drop the lower bits. A NaN must not become an infinity.
        bits = numbers.to(tl.uint32, bitcast=True)
        bits = tl.where(numbers == numbers, bits + 0x7FFF + ((bits >> 16) & 1), bits | 0x10000)
        return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return numbers.to(like.dtype.element_ty)


@triton.jit
def _fields(
    words,
    step,
    columns,
    out_features,
    BITS: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> Any:
    """Return a step's fields of so many bits [COLUMNS, STEP] int32, out of words."""
    NUM_WORDS: tl.constexpr = STEP * BITS // 32
    rows = (step * out_features + columns).to(tl.int64) * NUM_WORDS
    found = tl.load(words + rows[:, None] + tl.arange(0, NUM_WORDS)[None, :])
    shifts = tl.arange(0, 32 // BITS) * BITS
    fields = (found[:, :, None] >> shifts[None, None, :]) & ((1 << BITS) - 1)
    return tl.reshape(fields, (COLUMNS, STEP))


@triton.jit
def _group_numbers(values, factors, at, factors_at) -> Any:
    """Return the numbers of groups in float32; products with factors are exact.

    Bytes without factors are exponents of two, of which 0 is that of 2^-127.
    """
    if factors is None and values.dtype.element_ty == tl.uint8:
        exponents = tl.load(values + at).to(tl.int32)
        bits = tl.where(exponents == 0, 0x400000, exponents << 23)
        return bits.to(tl.float32, bitcast=True)
    found = tl.load(values + at).to(tl.float32)
    if factors is not None:
        found = found * tl.load(factors + factors_at).to(tl.float32)
    return found
