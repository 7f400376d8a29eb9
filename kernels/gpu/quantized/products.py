"""Products with quantized weights, unpacked tile by tile.

An unpacked tile has the numbers of the dequantized matrix. Products of many rows dequantize the
whole matrix first.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.matrix_product import INTERPRETED, MatmulTile, multiply
from pagedrun.kernels.gpu.quantized.code_tensors import STEP, CodeTensors

# From as many rows on a matrix is expanded once a call instead of once for every tile of rows. What
# that costs, writing 16 bits a weight and reading them again, is then a third of the product.
EXPAND_ROWS = 512
_MIN_STEPS = 8  # of a part of the inputs: fewer, and starting takes longer than reading
_PROGRAMS_EACH = 2  # that a processor is to have


def invariant_tile(device_chip: chip.Chip) -> MatmulTile:
    """Return the tile of a chip that does not depend on the number of rows.

    A tile unpacks its weights: more rows share that, fewer are faster for one token.
    """
    stages = 2 if device_chip.backend == "hip" else 3
    return MatmulTile(64, 64, STEP, num_warps=4, num_stages=stages)


def quantized_tile(
    num_rows: int, out_features: int, num_steps: int, device_chip: chip.Chip
) -> MatmulTile:
    """Return the tile for `num_rows` rows, fewer than `EXPAND_ROWS`.

    Few rows are bound by reading the weights, which needs as many programs as the chip can run:
    then the inputs are split into parts too.
    """
    stages = 2 if device_chip.backend == "hip" else 3
    if num_rows > 64:
        return MatmulTile(128, 64, STEP, num_warps=4, num_stages=stages)
    rows = max(16, triton.next_power_of_2(num_rows))
    columns = 64
    wanted = _PROGRAMS_EACH * device_chip.num_processors
    parts = min(wanted // triton.cdiv(out_features, columns), num_steps // _MIN_STEPS)
    return MatmulTile(rows, columns, STEP, 4, stages, num_parts=max(parts, 1))


@triton.jit
def multiply_steps(
    x_rows,
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    x,
    columns,
    first,
    end,
    out_features,
    in_features,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    STEP: tl.constexpr,
    NEIGHBORS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
) -> Any:
    """Return the products of the steps first .. end - 1 in ascending order, [COLUMNS, ROWS].

    The weights are the left operand: those are multiplied out of registers. x_rows: [ROWS, 1],
    where the rows of `x` begin. columns: [COLUMNS] outputs, all below out_features.
    """
    inputs = tl.arange(0, STEP)
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for step in range(first, end):
        at = (step * STEP + inputs)[None, :]
        if EVEN:
            right = tl.load(x_rows + at)
        else:
            right = tl.load(x_rows + at, mask=at < in_features, other=0.0)
        left = unpack_tile(
            *(words, above, scales, factors, zeros, minima, minimum_factors),
            *(x, step, columns, out_features, num_groups),
            *(KIND, OFFSET, GROUP, SPAN, STEP, NEIGHBORS, COLUMNS),
        )
        total = multiply(left, right.T, total)
    return total


@triton.jit
def store_outputs(out, total, rows, end, columns, out_features):
    """Store the elements of `total` [COLUMNS, ROWS] with rows below `end`, rounded to `out`."""
    target = out + rows.to(tl.int64)[None, :] * out_features + columns[:, None]
    mask = (columns < out_features)[:, None] & (rows < end)[None, :]
    tl.store(target, rounded(total, out), mask=mask)


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
    NEIGHBORS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> Any:
    """Return the weights [COLUMNS, STEP] of a step's inputs, in the element dtype of `like`.

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
    factors_at = (groups // NEIGHBORS)[None, :].to(tl.int64) * out_features + columns[:, None]
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
    """Round float32 numbers to the element dtype of pointer `like`, ties to even."""
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
    """Return a step's bit fields [COLUMNS, STEP] int32, from words."""
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


_COLUMNS = 64


def expand(
    codes: CodeTensors, start: int, end: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    """Return outputs start to end of the first weight, [end - start, in_features] in `dtype`."""
    words = codes.words[0]
    matrix = torch.empty(end - start, in_features, dtype=dtype, device=words.device)
    _expand[(triton.cdiv(end - start, _COLUMNS), words.shape[0])](
        *codes.tensors,
        matrix,
        start,
        end,
        words.shape[1],
        in_features,
        codes.num_groups,
        **codes.constants,
        COLUMNS=_COLUMNS,
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=False,
    )
    return matrix


@triton.jit(do_not_specialize=["start", "end"])
def _expand(
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    matrix,
    start,
    end,
    out_features,
    in_features,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    STEP: tl.constexpr,
    NEIGHBORS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Dequantize one step of a tile of outputs."""
    step = tl.program_id(1)
    columns = start + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tile = unpack_tile(
        *(words, above, scales, factors, zeros, minima, minimum_factors),
        *(matrix, step, tl.minimum(columns, end - 1), out_features, num_groups),
        *(KIND, OFFSET, GROUP, SPAN, STEP, NEIGHBORS, COLUMNS),
    )
    inputs = step * STEP + tl.arange(0, STEP)
    target = matrix + (columns - start).to(tl.int64)[:, None] * in_features + inputs[None, :]
    tl.store(target, tile, mask=(columns < end)[:, None] & (inputs < in_features)[None, :])
