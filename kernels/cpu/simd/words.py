"""Moves of 32-bit words, sixteen at a time: transposing, and pairs of bfloat16 in one word.

The matrix instructions for bfloat16 take two neighboring terms of a sum as one word, the first in
its lower half.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload

from pagedrun.kernels.cpu.simd.arrays import INT8, INT16, INT32, element_pointer
from pagedrun.kernels.cpu.simd.lanes import (
    FLOATS,
    NUM_LANES,
    WORDS,
    lanes_type,
    load,
    store,
)

_HALVES = ir.VectorType(INT16, NUM_LANES)
_TO_INTEGER = 12_582_912.0  # 1.5 * 2^23: see `lanes`
_BYTES = ir.VectorType(INT8, NUM_LANES)


def _all(value: int) -> Any:
    return ir.Constant(WORDS, [value] * NUM_LANES)


def _rounded(builder: Any, value: Any) -> Any:
    """Return float32 lanes as words whose upper halves are the nearest bfloat16, ties to even."""
    bits = builder.bitcast(value, WORDS)
    odd = builder.and_(builder.lshr(bits, _all(16)), _all(1))
    return builder.add(builder.add(bits, _all(0x7FFF)), odd)


@intrinsic
def store_pairs(typing_context: Any, array: Any, offset: Any, even: Any, odd: Any) -> Any:
    """Round two Lanes to bfloat16, ties away from 0, and write lane i of both as one word.

    array: uint32. Ties away from 0 take half the instructions of ties to even, and are as near. A
    NaN may come out as another one; one that has all digits set, which no arithmetic gives, as 0.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        pointer = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        even, odd = (
            builder.add(builder.bitcast(value, WORDS), _all(0x8000)) for value in arguments[2:]
        )
        low, high = builder.lshr(even, _all(16)), builder.and_(odd, _all(0xFFFF0000))
        words = builder.or_(low, high)
        builder.store(words, builder.bitcast(pointer, WORDS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, offset, even, odd), generate


@intrinsic
def store_halves(typing_context: Any, array: Any, offset: Any, value: Any) -> Any:
    """Round Lanes to bfloat16 and write them to a uint16 array; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of, value = signature.args, arguments[2]
        pointer = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        words = builder.lshr(_rounded(builder, value), _all(16))
        is_nan = builder.fcmp_unordered("uno", value, value)
        halves = builder.trunc(builder.select(is_nan, _all(0x7FC0), words), _HALVES)
        builder.store(halves, builder.bitcast(pointer, _HALVES.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(array, offset, value), generate


@intrinsic
def store_shifted(typing_context: Any, array: Any, offset: Any, value: Any, shift: Any) -> Any:
    """Round Lanes to integers, subtract an int32, and write the results to an int8 array.

    Lanes are below 2^22, and the results from -128 to 127; ties go to even.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        pointer = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        rounded = builder.fadd(arguments[2], ir.Constant(FLOATS, [_TO_INTEGER] * NUM_LANES))
        shift = _splat(builder, context.cast(builder, arguments[3], types_of[3], types.int32))
        codes = builder.trunc(builder.sub(builder.bitcast(rounded, WORDS), shift), _BYTES)
        builder.store(codes, builder.bitcast(pointer, _BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, offset, value, shift), generate


@intrinsic
def load_shifted(
    typing_context: Any, array: Any, offset: Any, shift: Any, added: Any, added_offset: Any
) -> Any:
    """Return sixteen of `array + shift * added` as Lanes; all are int32, and wrap around."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        words = []
        for i in (0, 3):
            pointer = element_pointer(
                context, builder, types_of[i], arguments[i], types_of[i + 1], arguments[i + 1]
            )
            words.append(builder.load(builder.bitcast(pointer, WORDS.as_pointer()), align=4))
        shift = _splat(builder, context.cast(builder, arguments[2], types_of[2], types.int32))
        total = builder.add(words[0], builder.mul(words[1], shift))
        return builder.sitofp(total, FLOATS)

    return lanes_type(array, offset, shift, added, added_offset), generate


def _splat(builder: Any, word: Any) -> Any:
    one = builder.insert_element(ir.Constant(WORDS, ir.Undefined), word, INT32(0))
    return builder.shuffle_vector(one, one, ir.Constant(WORDS, [0] * NUM_LANES))


@intrinsic
def load_halves(typing_context: Any, array: Any, offset: Any) -> Any:
    """Read sixteen bfloat16 of a uint16 C array, from flat index `offset` on, as Lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        pointer = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        halves = builder.load(builder.bitcast(pointer, _HALVES.as_pointer()), align=2)
        return builder.bitcast(builder.shl(builder.zext(halves, WORDS), _all(16)), FLOATS)

    return lanes_type(array, offset), generate


@intrinsic
def load_int8(typing_context: Any, array: Any, offset: Any) -> Any:
    """Read sixteen numbers of an int8 C array, from flat index `offset` on, as Lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = builder.sext(_load_bytes(context, builder, signature, arguments), WORDS)
        return builder.sitofp(wide, FLOATS)

    return lanes_type(array, offset), generate


@intrinsic
def load_int32(typing_context: Any, array: Any, offset: Any) -> Any:
    """Read sixteen numbers of an int32 C array, from flat index `offset` on, as Lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        pointer = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        words = builder.load(builder.bitcast(pointer, WORDS.as_pointer()), align=4)
        return builder.sitofp(words, FLOATS)

    return lanes_type(array, offset), generate


@intrinsic
def load_float8(typing_context: Any, array: Any, offset: Any) -> Any:
    """Read sixteen float8_e4m3fn of a uint8 C array, from flat index `offset` on, as Lanes.

    Exponent and fraction are shifted to their positions in float32, whose exponent bias is 127
    instead of 7: hence the factor 2^120.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = builder.sext(_load_bytes(context, builder, signature, arguments), WORDS)
        bits = builder.and_(builder.shl(wide, _all(20)), _all(0x87F00000))
        moved = builder.bitcast(bits, FLOATS)
        value = builder.fmul(moved, ir.Constant(FLOATS, [2.0**120] * NUM_LANES))
        magnitude = builder.and_(bits, _all(0x7FFFFFFF))
        is_nan = builder.icmp_unsigned("==", magnitude, _all(0x7F << 20))
        return builder.select(is_nan, builder.bitcast(_all(0x7FC00000), FLOATS), value)

    return lanes_type(array, offset), generate


def _load_bytes(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    types_of = signature.args
    pointer = element_pointer(
        context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
    )
    return builder.load(builder.bitcast(pointer, _BYTES.as_pointer()), align=1)


def read_lanes(array: Any, offset: Any) -> Any:
    """Inside kernels: read sixteen numbers of an array that `as_array` made, as Lanes."""
    raise NotImplementedError("only compiled code calls this")


def write_lanes(array: Any, offset: Any, value: Any) -> None:
    """Inside kernels: write Lanes to a float32 array, or rounded to one of bfloat16 bits."""
    raise NotImplementedError("only compiled code calls this")


@overload(read_lanes, strict=False)
def _overload_read_lanes(array: Any, offset: Any) -> Any:
    if array.dtype == types.uint16:
        return lambda array, offset: load_halves(array, offset)
    if array.dtype == types.int8:
        return lambda array, offset: load_int8(array, offset)
    if array.dtype == types.uint8:
        return lambda array, offset: load_float8(array, offset)
    if array.dtype == types.int32:
        return lambda array, offset: load_int32(array, offset)
    return lambda array, offset: load(array, offset)


@overload(write_lanes, strict=False)
def _overload_write_lanes(array: Any, offset: Any, value: Any) -> Any:
    if array.dtype == types.uint16:
        return lambda array, offset, value: store_halves(array, offset, value)
    return lambda array, offset, value: store(array, offset, value)


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Transpose as many vectors of words as each has, swapping halves, quarters, … of pairs."""
    size, step = len(rows), 1
    lanes, kind = range(size), ir.VectorType(INT32, size)
    while step < size:
        upper = [lane if not lane & step else size + lane - step for lane in lanes]
        lower = [lane + step if not lane & step else size + lane for lane in lanes]
        swapped = list(rows)
        for i in lanes:
            if not i & step:
                pair = rows[i], rows[i + step]
                swapped[i] = builder.shuffle_vector(*pair, ir.Constant(kind, upper))
                swapped[i + step] = builder.shuffle_vector(*pair, ir.Constant(kind, lower))
        rows, step = swapped, 2 * step
    return rows


def transposing(size: int, *, in_pairs: bool = False) -> Any:
    """Return an intrinsic that transposes size x size elements of a 32-bit array to another array.

    Row i of the source begins at `offset + i * stride`, column i of it goes to `target_offset + i *
    target_stride`. in_pairs: an element is four int8, and its column becomes two: of the first and
    third ones, and of the others, each in 16 bits.
    """

    @intrinsic
    def transpose(
        typing_context: Any,
        source: Any,
        offset: Any,
        stride: Any,
        target: Any,
        target_offset: Any,
        target_stride: Any,
    ) -> Any:
        kind, halves = ir.VectorType(INT32, size), ir.VectorType(INT16, 2 * size)
        eight = ir.Constant(halves, [8] * 2 * size)

        def columns(builder: Any, rows: list[Any]) -> list[Any]:
            if not in_pairs:
                return _transposed(builder, rows)
            odd = [builder.ashr(builder.bitcast(row, halves), eight) for row in rows]
            even = [
                builder.ashr(builder.shl(builder.bitcast(row, halves), eight), eight)
                for row in rows
            ]
            turned = (
                _transposed(builder, [builder.bitcast(row, kind) for row in part])
                for part in (even, odd)
            )
            return [column for pair in zip(*turned, strict=True) for column in pair]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            places = list(zip(signature.args, arguments, strict=True))
            read = _row_pointers(context, builder, places[:3], size, kind)
            found = columns(builder, [builder.load(pointer, align=4) for pointer in read])
            write = _row_pointers(context, builder, places[3:], len(found), kind)
            for column, pointer in zip(found, write, strict=True):
                builder.store(column, pointer, align=4)
            return context.get_dummy_value()

        return types.void(source, offset, stride, target, target_offset, target_stride), generate

    return transpose


transpose_words = transposing(NUM_LANES)


@intrinsic
def transpose_pairs(
    typing_context: Any,
    source: Any,
    offset: Any,
    other_offset: Any,
    stride: Any,
    target: Any,
    target_offset: Any,
    target_stride: Any,
) -> Any:
    """Transpose 32 rows of 16 bfloat16 to 16 rows of 32; as `transpose_words`.

    source, target: uint16 arrays, offsets and strides in their elements. The first 16 rows begin at
    `offset`, the others at `other_offset`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = list(zip(signature.args, arguments, strict=True))
        halves = []
        for start in (1, 2):
            chosen = [places[i] for i in (0, start, 3)]
            read = _row_pointers(context, builder, chosen, NUM_LANES, _HALVES)
            halves += [builder.zext(builder.load(row, align=2), WORDS) for row in read]
        write = _row_pointers(context, builder, places[4:], NUM_LANES, WORDS)
        words = [
            builder.or_(halves[i], builder.shl(halves[i + 1], _all(16))) for i in range(0, 32, 2)
        ]
        for row, pointer in zip(_transposed(builder, words), write, strict=True):
            builder.store(row, pointer, align=2)
        return context.get_dummy_value()

    given = (source, offset, other_offset, stride, target, target_offset, target_stride)
    return types.void(*given), generate


def _row_pointers(context: Any, builder: Any, places: Any, count: int, row_type: Any) -> list[Any]:
    """Return the addresses of rows; places: type and value of array, offset and stride."""
    (array_type, array), (offset_type, offset), (stride_type, stride) = places
    start = context.cast(builder, offset, offset_type, types.intp)
    step = context.cast(builder, stride, stride_type, types.intp)
    pointers = []
    for row in range(count):
        place = builder.add(start, builder.mul(step, step.type(row)))
        pointer = element_pointer(context, builder, array_type, array, types.intp, place)
        pointers.append(builder.bitcast(pointer, row_type.as_pointer()))
    return pointers
