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
from pagedrun.kernels.gpu.quantized.code_tensors import CodeTensors

_TILE_ROWS = 128
# From as many rows on, more than one tile, a matrix is expanded once a call: the vendor's product
# and the expansion then take less time than tiles of rows that each unpack the matrix.
EXPAND_ROWS = _TILE_ROWS + 1
_MIN_INPUTS = 512  # of a part: fewer, and starting takes longer than reading


def invariant_tile(codes: CodeTensors, device_chip: chip.Chip) -> MatmulTile:
    """Return the tile of a chip that does not depend on the number of rows.

    A tile unpacks its weights: more rows share that, fewer are faster for one token.
    """
    return MatmulTile(64, 64, codes.step, 4, _num_stages(64, 64, codes, device_chip))


def quantized_tile(num_rows: int, codes: CodeTensors, device_chip: chip.Chip) -> MatmulTile:
    """Return the tile for `num_rows` rows, fewer than `EXPAND_ROWS`.

    Few rows are bound by reading and unpacking the weights, which needs several programs on each
    processor: then the inputs are split into parts too. Tiles and numbers of programs are the
    fastest of a sweep on an H200.
    """
    _, num_steps, out_features, _ = codes.words.shape
    rows = max(16, triton.next_power_of_2(num_rows))
    if device_chip.shared_memory < 128 << 10:
        rows = min(rows, 64)
    columns, num_warps, programs = (64, 4, 3.0) if rows <= 64 else (_TILE_ROWS, 8, 1.5)
    num_tiles = triton.cdiv(out_features, columns) * triton.cdiv(num_rows, rows)
    parts = min(
        round(programs * device_chip.num_processors / num_tiles),
        num_steps * codes.step // _MIN_INPUTS,
        4 if rows >= 64 else 16,  # more, and adding their sums takes longer than is won
    )
    stages = _num_stages(rows, columns, codes, device_chip)
    return MatmulTile(rows, columns, codes.step, num_warps, stages, num_parts=max(parts, 1))


def _num_stages(rows: int, columns: int, codes: CodeTensors, device_chip: chip.Chip) -> int:
    """Return the stages of a pipeline: three where they leave room for a second program, or where
    there is one anyway."""
    if device_chip.backend == "hip" or rows == 64:
        return 2
    code_bytes = 4 * codes.words.shape[3]
    if codes.above is not None:
        code_bytes += codes.above.itemsize * codes.above.shape[3]
    needed = 3 * 2 * rows * codes.step + 2 * code_bytes * columns
    fits = needed <= device_chip.shared_memory - (2 << 10)
    return 3 if fits else 2


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
    SLAB: tl.constexpr,
    NEIGHBORS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
) -> Any:
    """Return the products of the steps first .. end - 1 in ascending order, [COLUMNS, ROWS].

    The weights are the left operand: those are multiplied out of registers. x_rows: [ROWS, 1],
    where the rows of `x` begin. columns: [COLUMNS] outputs, all below out_features.
    """
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for step in range(first, end):
        for slab in tl.static_range(8):
            at = ((step * 8 + slab) * SLAB + tl.arange(0, SLAB))[None, :]
            if EVEN:
                right = tl.load(x_rows + at)
            else:
                right = tl.load(x_rows + at, mask=at < in_features, other=0.0)
            left = unpack_slab(
                *(words, above, scales, factors, zeros, minima, minimum_factors),
                *(x, step, slab, columns, out_features, num_groups),
                *(KIND, OFFSET, GROUP, SLAB, NEIGHBORS),
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
# What the bits of the two float formats, moved to where float32 has these, are less by.
_FLOAT4_FACTOR, _FLOAT8_FACTOR = tl.constexpr(2.0**126), tl.constexpr(2.0**120)


@triton.jit
def unpack_slab(
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    like,
    step,
    NUMBER: tl.constexpr,
    columns,
    out_features,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SLAB: tl.constexpr,
    NEIGHBORS: tl.constexpr,
) -> Any:
    """Return the weights [COLUMNS, SLAB] of slab NUMBER of a step, in the element dtype of `like`.

    `(code - zero) * scale - minimum`, in float32 and rounded once; see `CodeTensors`. columns:
    [COLUMNS] outputs, all below out_features. A launch must not fuse products and sums. Slabs of a
    step have loads in common, of which the compiler leaves one.
    """
    WHOLE: tl.constexpr = KIND == _FLOAT8 or KIND == 8
    FIELDS: tl.constexpr = 4 if WHOLE else 8
    inputs = tl.arange(0, SLAB)[None, :]
    rows = (step * out_features + columns).to(tl.int64)[:, None]
    found = tl.load(words + rows * (8 // FIELDS * SLAB) + NUMBER // FIELDS * SLAB + inputs)
    group = 0
    if GROUP > 0:
        # Behind the last input there are no more groups.
        group = tl.minimum(_group_of(NUMBER, step, GROUP, SLAB), num_groups - 1)
    at = tl.cast(group, tl.int64) * out_features + columns
    factors_at = tl.cast(group // NEIGHBORS, tl.int64) * out_features + columns
    scale = _group_numbers(scales, factors, at, factors_at)[:, None]
    if KIND == _FLOAT8:
        top = found << (24 - NUMBER % 4 * 8)
        moved = ((top >> 4) & 0x07F00000) | (top & -0x80000000)
        numbers = (moved.to(tl.float32, bitcast=True) * _FLOAT8_FACTOR) * scale
    elif KIND == _FLOAT4:
        top = found << (28 - NUMBER * 4)
        moved = ((top >> 6) & 0x01C00000) | (top & -0x80000000)
        numbers = (moved.to(tl.float32, bitcast=True) * _FLOAT4_FACTOR) * scale
    else:
        # The bits of a code, wherever they are in a fraction without an exponent, are a subnormal
        # number, which a product of two powers turns into the code: so few are shifted.
        SHIFT: tl.constexpr = (NUMBER % 4 // 2 * 16) if KIND == 8 else (12 if NUMBER > 4 else 0)
        FIRST: tl.constexpr = NUMBER % FIELDS * (32 // FIELDS) - SHIFT
        bits = (found >> SHIFT) & ((255 if KIND == 8 else 15) << FIRST)
        if above is not None:
            upper = tl.load(above + rows * SLAB + inputs).to(tl.int32)
            mask: tl.constexpr = ((1 << (KIND - 4)) - 1) << (FIRST + 4)
            bits = bits | (_shifted(upper, FIRST + 4 - NUMBER * (KIND - 4)) & mask)
        numbers = bits.to(tl.float32, bitcast=True) * 2.0 ** (127 - FIRST)  # the code / 2^22
        # Products of codes or zeros with scales of 16 bits have at most 24, with eight and a factor
        # too: so the fused sum is rounded once, as the weight is.
        FUSED: tl.constexpr = scales.dtype.element_ty != tl.float32
        if minima is not None:
            less = _group_numbers(minima, minimum_factors, at, factors_at)[:, None]
        else:
            less = tl.full(scale.shape, OFFSET, tl.float32)
            if zeros is not None:
                less = less + tl.load(zeros + at).to(tl.float32)[:, None]
            if FUSED:
                less = less * scale
        if FUSED:
            numbers = tl.fma(numbers, scale * 4194304.0, -less)  # 2^22
        elif minima is not None:
            numbers = numbers * (scale * 4194304.0) - less
        else:
            numbers = (numbers * 4194304.0 - less) * scale
    return rounded(numbers, like)


@triton.jit
def _group_of(NUMBER: tl.constexpr, step, GROUP: tl.constexpr, SLAB: tl.constexpr) -> Any:
    """Return the group of a slab's inputs."""
    if GROUP % (8 * SLAB) == 0:  # one for all slabs
        return step // (GROUP // (8 * SLAB))
    if 8 * SLAB % GROUP == 0:
        return step * (8 * SLAB // GROUP) + NUMBER * SLAB // GROUP
    return (step * 8 + NUMBER) * SLAB // GROUP


@triton.jit
def _shifted(numbers, LEFT: tl.constexpr) -> Any:
    if LEFT >= 0:
        return numbers << LEFT
    return numbers >> -LEFT


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
    SLAB: tl.constexpr,
    NEIGHBORS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Dequantize one step of a tile of outputs."""
    step = tl.program_id(1)
    columns = start + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    own_columns = tl.minimum(columns, end - 1)
    target = matrix + (columns - start).to(tl.int64)[:, None] * in_features
    for slab in tl.static_range(8):
        tile = unpack_slab(
            *(words, above, scales, factors, zeros, minima, minimum_factors),
            *(matrix, step, slab, own_columns, out_features, num_groups),
            *(KIND, OFFSET, GROUP, SLAB, NEIGHBORS),
        )
        inputs = (step * 8 + slab) * SLAB + tl.arange(0, SLAB)[None, :]
        tl.store(target + inputs, tile, mask=(columns < end)[:, None] & (inputs < in_features))
