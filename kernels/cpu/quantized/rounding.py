"""Rounding of rows to int8, with a scale for each block of neighbors; see `block_sizes`.

A block is rounded in registers, without branches, so that the processor computes several at once:
each has a chain of dependent steps, its largest magnitude, a division and a sum, which is several
times as long as the work.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd.arrays import INT8, INT32, INT64
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, TO_INTEGER, WORDS, spread, store
from pagedrun.kernels.cpu.simd.words import read_lanes
from pagedrun.kernels.reference.linear import LARGEST_CODE, SMALLEST

PART = 64  # codes that lie together, at most
_FLOAT = ir.FloatType()


@inlined(fastmath=EXACT)
def read_row(x: Any, tokens: Any, segment: Any, i: Any, values: Any) -> None:
    """Write row i of an expert as float32. Zeros follow its end, and are a row beyond the last."""
    done, num_k = 0, x.shape[1]
    if i < segment[2] - segment[1]:
        row = segment[1] + i
        source = tokens[row] if tokens.shape[0] > 0 else row
        whole = num_k - num_k % NUM_LANES
        for k in range(0, whole, NUM_LANES):
            store(values, k, read_lanes(x, source * num_k + k))
        for k in range(whole, num_k):
            values[k] = to_float32(x[source, k])
        done = num_k
    for k in range(done, values.shape[0]):
        values[k] = np.float32(0.0)


@inlined(fastmath=EXACT)
def round_row(
    values: Any, sum_size: Any, codes: Any, place: Any, stride: Any, scales: Any, added: Any
) -> None:
    """Round a row to codes, and write the scale and the sum of codes of each integer sum.

    values: float32, whole sums. codes: int8; those of the row begin at `place`, in parts of
    `sum_size` or `PART`, the smaller, that begin `stride` apart.
    """
    source, target = values.ctypes.data, codes.ctypes.data + place
    scale, total = scales.ctypes.data, added.ctypes.data
    if sum_size == 128:
        for _ in range(values.shape[0] // 128):
            _round_128(source, target, stride, scale, total)
            source, target, scale, total = source + 512, target + 2 * stride, scale + 4, total + 4
    elif sum_size == 64:
        for _ in range(values.shape[0] // 64):
            _round_64(source, target, stride, scale, total)
            source, target, scale, total = source + 256, target + stride, scale + 4, total + 4
    elif sum_size == 32:
        for _ in range(values.shape[0] // 32):
            _round_32(source, target, stride, scale, total)
            source, target, scale, total = source + 128, target + stride, scale + 4, total + 4
    else:
        for _ in range(values.shape[0] // 32):
            _round_two_of_16(source, target, stride, scale, total)
            source, target, scale, total = source + 128, target + 2 * stride, scale + 8, total + 8


def _rounding(scale_size: int, sum_size: int) -> Any:
    """Return an intrinsic that rounds numbers that share a scale, for whole integer sums."""
    part = min(sum_size, PART)

    @intrinsic
    def round_block(
        typing_context: Any, values: Any, codes: Any, stride: Any, scales: Any, added: Any
    ) -> Any:
        """values, scales, added: addresses of float32. codes: address of int8."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values, codes, stride, scales, added = arguments

            def at(address: Any, offset: Any, kind: Any) -> Any:
                place = builder.add(address, offset)
                return builder.inttoptr(place, kind.as_pointer())

            numbers = [
                builder.load(at(values, INT64(4 * i), FLOATS), align=4)
                for i in range(0, scale_size, NUM_LANES)
            ]
            largest = _largest_magnitude(builder, numbers)
            is_finite = builder.fcmp_ordered("<", largest, _FLOAT(float("inf")))
            is_small = builder.fcmp_ordered("<", largest, _FLOAT(SMALLEST))
            largest = builder.select(is_small, _FLOAT(SMALLEST), largest)
            inverse = spread(builder, builder.fdiv(_FLOAT(LARGEST_CODE), largest))
            scale = builder.fdiv(largest, _FLOAT(LARGEST_CODE))
            scale = builder.select(is_finite, scale, _FLOAT(float("nan")))
            magic = ir.Constant(FLOATS, [float(TO_INTEGER)] * NUM_LANES)
            for j, start in enumerate(range(0, scale_size, sum_size)):
                total = None
                for i in range(start, start + sum_size, NUM_LANES):
                    shifted = builder.fadd(builder.fmul(numbers[i // NUM_LANES], inverse), magic)
                    # What is not finite has codes 0.
                    shifted = builder.select(is_finite, shifted, magic)
                    code = builder.trunc(
                        builder.bitcast(shifted, WORDS), ir.VectorType(INT8, NUM_LANES)
                    )
                    offset = builder.mul(stride, INT64(i // part))
                    place = at(codes, builder.add(offset, INT64(i % part)), code.type)
                    builder.store(code, place, align=1)
                    rounded = builder.fsub(shifted, magic)
                    total = rounded if total is None else builder.fadd(total, rounded)
                builder.store(scale, at(scales, INT64(4 * j), _FLOAT), align=4)
                builder.store(_sum(builder, total), at(added, INT64(4 * j), _FLOAT), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return round_block


def _halves(builder: Any, vector: Any) -> tuple[Any, Any]:
    half = vector.type.count // 2
    orders = ir.VectorType(INT32, half)
    low, high = (
        builder.shuffle_vector(vector, vector, ir.Constant(orders, [*range(start, start + half)]))
        for start in (0, half)
    )
    return low, high


def _largest_magnitude(builder: Any, numbers: list[Any]) -> Any:
    """Return the largest magnitude, NaN if one is NaN.

    Bits of magnitudes, as integers, have the order of the numbers, with infinity and NaN last.
    """
    digits = ir.Constant(WORDS, [0x7FFFFFFF] * NUM_LANES)
    words = [builder.and_(builder.bitcast(each, WORDS), digits) for each in numbers]
    while len(words) > 1:
        words = [
            _larger(builder, one, other) for one, other in zip(words[::2], words[1::2], strict=True)
        ]
    found = words[0]
    while found.type.count > 1:
        found = _larger(builder, *_halves(builder, found))
    return builder.bitcast(builder.extract_element(found, INT32(0)), _FLOAT)


def _larger(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_unsigned(">", one, other), one, other)


def _sum(builder: Any, total: Any) -> Any:
    """Return the sum of lanes, which are integers: exact in any order."""
    while total.type.count > 1:
        total = builder.fadd(*_halves(builder, total))
    return builder.extract_element(total, INT32(0))


_round_128, _round_64, _round_32 = (_rounding(size, size) for size in (128, 64, 32))
_round_two_of_16 = _rounding(32, 16)
