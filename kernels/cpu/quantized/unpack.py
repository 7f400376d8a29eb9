"""Quantized codes to bfloat16, a panel's step at a time: AVX-512 with its bfloat16.

A code of up to five bits is looked up in a register with the weights of all codes of its group, so
that the cost of a weight does not depend on its arithmetic. Wider codes are converted and
multiplied. Rounding to bfloat16 is to nearest, ties to even; denormal results become 0, as in
products of bfloat16.

Intrinsics take addresses, int64: passing an array means passing some ten words, which took several
times the computation here. The caller keeps the memory alive.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.quantized.code_arrays import (
    BFLOAT16,
    EIGHT_BITS,
    FIVE_BITS,
    FLOAT16,
    FLOAT32,
    FOUR_BITS,
    PANEL,
    SIX_BITS,
)
from pagedrun.kernels.cpu.simd.arrays import INT8, INT16, INT32
from pagedrun.kernels.cpu.simd.block_product import PAIRS
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, WORDS, lanes_type

_LANES = 16
# Bytes behind the beginning of what kernels have for a group's numbers, and how many there are.
_ZEROS, _MINIMA, _SECOND, NUMBER_BYTES = 128, 256, 384, 512
TABLE_BYTES = 64  # of an output, at most


@inlined(fastmath=EXACT)
def begin_group(weight: Any, panel: Any, step: Any, numbers: Any, tables: Any) -> Any:
    """Read the scales of the group that begins at a step; return the number of its further steps.

    weight: `CodePlaces`. numbers: the address of `NUMBER_BYTES`. tables: of `TABLE_BYTES`
    for each output, for the weights of its codes.
    """
    if weight.steps_per_group == 0:
        read_numbers(weight, weight.scales, weight.factors, panel, 2 * step, numbers)
        read_numbers(weight, weight.scales, weight.factors, panel, 2 * step + 1, numbers + _SECOND)
        return 0
    group = step // weight.steps_per_group
    read_numbers(weight, weight.scales, weight.factors, panel, group, numbers)
    if weight.kind == FOUR_BITS or weight.kind == FIVE_BITS:
        _write_tables(weight, panel, group, numbers, tables)
    return weight.steps_per_group - 1


@inlined(fastmath=EXACT)
def _write_tables(weight: Any, panel: Any, group: Any, numbers: Any, tables: Any) -> None:
    if weight.zeros != 0:
        first = weight.zeros + (panel * weight.num_groups + group) * PANEL
        for i in range(0, PANEL, _LANES):
            store_at(numbers + _ZEROS + 4 * i, int8_at(first + i))
    if weight.minima != 0:
        place = numbers + _MINIMA
        read_numbers(weight, weight.minima, weight.minimum_factors, panel, group, place)
    zeros, minima = numbers + _ZEROS, numbers + _MINIMA
    if weight.kind == FOUR_BITS:
        if weight.minima != 0:
            tables_16_minimum(numbers, zeros, minima, tables)
        elif weight.zeros != 0:
            tables_16_zero(numbers, zeros, minima, tables)
        else:
            tables_16(numbers, zeros, minima, tables)
    elif weight.minima != 0:
        tables_32_minimum(numbers, zeros, minima, tables)
    elif weight.zeros != 0:
        tables_32_zero(numbers, zeros, minima, tables)
    else:
        tables_32(numbers, zeros, minima, tables)


@inlined(fastmath=EXACT)
def read_numbers(
    weight: Any, values: Any, factors: Any, panel: Any, group: Any, target: Any
) -> None:
    """Write 32 scales of a panel's group as float32."""
    first = (panel * weight.num_groups + group) * PANEL
    if weight.scale_form == FLOAT32:
        for i in range(0, PANEL, _LANES):
            store_at(target + 4 * i, float_at(values + 4 * (first + i)))
    elif weight.scale_form == FLOAT16:
        for i in range(0, PANEL, _LANES):
            store_at(target + 4 * i, half_at(values + 2 * (first + i)))
    elif weight.scale_form == BFLOAT16:
        for i in range(0, PANEL, _LANES):
            store_at(target + 4 * i, bfloat16_at(values + 2 * (first + i)))
    else:
        num_factors = weight.num_groups // weight.groups_per_factor
        factor = (panel * num_factors + group // weight.groups_per_factor) * PANEL
        for i in range(0, PANEL, _LANES):
            value = int8_at(values + first + i) * half_at(factors + 2 * (factor + i))
            store_at(target + 4 * i, value)


@inlined()
def second_numbers(weight: Any, numbers: Any) -> Any:
    """Return the address of the scales of a step's second half."""
    return numbers + _SECOND if weight.steps_per_group == 0 else numbers


@inlined(fastmath=EXACT)
def unpack_step(
    kind: Any, codes: Any, above: Any, numbers: Any, second: Any, tables: Any, target: Any
) -> None:
    """Write the weights of a panel's step to an address, [32 outputs, 32] bfloat16.

    codes, above: addresses of the step. Not `CodePlaces`, all fields of which would be copied for
    each step.
    """
    if kind == FOUR_BITS:
        unpack_four_bits(codes, above, tables, target)
    elif kind == FIVE_BITS:
        unpack_five_bits(codes, above, tables, target)
    elif kind == SIX_BITS:
        unpack_six_bits(codes, above, numbers, second, target)
    elif kind == EIGHT_BITS:
        unpack_eight_bits(codes, above, numbers, second, target)
    else:
        unpack_float8(codes, above, numbers, second, target)


STEP = 32  # weights of a row that one register holds
_BYTES = ir.VectorType(INT8, NUM_LANES)
_HALVES = ir.VectorType(INT16, NUM_LANES)
_CODES = ir.VectorType(INT16, STEP)
_LOW_HALF, _HIGH_HALF = list(range(NUM_LANES)), list(range(NUM_LANES, STEP))
_ROW_BYTES = 2 * STEP
_HALF_BYTES = 32  # of what sixteen codes mean


def _all(value: int) -> Any:
    return ir.Constant(_CODES, [value] * STEP)


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}")
    return builder.call(function, arguments)


def _picked(builder: Any, one: Any, other: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(INT32, len(lanes)), lanes)
    return builder.shuffle_vector(one, other, mask)


def _rounded(builder: Any, low: Any, high: Any) -> Any:
    """Round the floats of two registers to the bits of 32 bfloat16."""
    pairs = _call(builder, "avx512bf16.cvtne2ps2bf16.512", PAIRS, high, low)
    return builder.bitcast(pairs, _CODES)


def _splat(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(one, one, ir.Constant(WORDS, [0] * NUM_LANES))


def _address(builder: Any, address: Any, num_bytes: int, kind: Any) -> Any:
    """Return a pointer to an address plus `num_bytes`."""
    place = builder.add(address, address.type(num_bytes))
    return builder.inttoptr(place, kind.as_pointer())


def _on_memory(body: Callable[[Any, Any], None]) -> Any:
    """Return what generates an intrinsic of addresses: `body` is given a way to reach each of them,
    `at(argument, bytes behind it, what is there)`, which is a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def at(argument: int, num_bytes: int, kind: Any) -> Any:
            return _address(builder, arguments[argument], num_bytes, kind)

        body(builder, at)
        return context.get_dummy_value()

    return generate


def _lanes_at(kind: Any, convert: Callable[[Any, Any], Any]) -> Any:
    @intrinsic
    def lanes_at(typing_context: Any, address: Any) -> Any:
        """Read sixteen numbers as Lanes."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            loaded = builder.load(_address(builder, arguments[0], 0, kind), align=1)
            return convert(builder, loaded)

        return lanes_type(types.int64), generate

    return lanes_at


@intrinsic
def store_at(typing_context: Any, address: Any, value: Any) -> Any:
    """Write Lanes as sixteen float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _address(builder, arguments[0], 0, FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, lanes_type), generate


def _from_half(builder: Any, loaded: Any) -> Any:
    halves = builder.bitcast(loaded, ir.VectorType(ir.HalfType(), NUM_LANES))
    return builder.fpext(halves, FLOATS)


def _from_bfloat16(builder: Any, loaded: Any) -> Any:
    upper = builder.shl(builder.zext(loaded, WORDS), ir.Constant(WORDS, [16] * NUM_LANES))
    return builder.bitcast(upper, FLOATS)


def _from_int8(builder: Any, loaded: Any) -> Any:
    return builder.sitofp(builder.sext(loaded, WORDS), FLOATS)


half_at = _lanes_at(_HALVES, _from_half)
bfloat16_at = _lanes_at(_HALVES, _from_bfloat16)
int8_at = _lanes_at(_BYTES, _from_int8)
float_at = _lanes_at(FLOATS, lambda builder, loaded: loaded)


def _table_writer(num_codes: int, is_signed: bool, has_zero: bool, has_minimum: bool) -> Any:
    numbers = [
        float(i - num_codes if is_signed and i >= num_codes // 2 else i) for i in range(num_codes)
    ]

    def body(builder: Any, at: Any) -> None:
        parts = []  # of sixteen codes; two of them are rounded and written together
        for row in range(STEP):
            scale, zero, minimum = (
                _splat(builder, builder.load(at(i, row * 4, ir.FloatType()), align=4))
                for i in range(3)
            )
            for i in range(0, num_codes, NUM_LANES):
                value = ir.Constant(FLOATS, numbers[i : i + NUM_LANES])
                value = builder.fsub(value, zero) if has_zero else value
                value = builder.fmul(value, scale)
                parts.append(builder.fsub(value, minimum) if has_minimum else value)
        for i in range(0, len(parts), 2):
            table = _rounded(builder, parts[i], parts[i + 1])
            builder.store(table, at(3, i * _HALF_BYTES, _CODES), align=2)

    @intrinsic
    def write_tables(typing_context: Any, scales: Any, zeros: Any, minima: Any, to: Any) -> Any:
        """Write the weight of each code of a group, `(code - zero) * scale - minimum` in bfloat16.

        scales, zeros, minima: float32 of 32 outputs. A table follows the other.
        """
        return types.void(*[types.int64] * 4), _on_memory(body)

    return write_tables


# Of 16 codes and of 32: signed; less a zero point; and from 0 on, less a minimum.
(tables_16, tables_16_zero, tables_16_minimum), (tables_32, tables_32_zero, tables_32_minimum) = (
    (
        _table_writer(size, True, False, False),
        _table_writer(size, True, True, False),
        _table_writer(size, False, False, True),
    )
    for size in (16, 32)
)


def _shifted(builder: Any, words: Any, by: int) -> Any:
    """Return words shifted to the right, or to the left if negative.

    To the right by multiplication, since shifts use the execution unit of lookups.
    """
    if by == 0:
        return words
    if by < 0:
        return builder.shl(words, _all(-by))
    return _call(builder, "avx512.pmulhu.w.512", _CODES, words, _all(1 << (16 - by)))


def _merged(builder: Any, low: Any, high: Any) -> Any:
    """Return the lower four bits of one word and the upper bits of the other."""
    return builder.or_(builder.and_(low, _all(15)), builder.and_(high, _all(0xFFF0)))


def _look_up(builder: Any, at: Any, row: int, codes: Any, num_codes: int) -> None:
    """Write the weights of codes. A table of 16 is repeated, so bits above four are ignored."""
    if num_codes == NUM_LANES:
        half = builder.load(at(2, row * _HALF_BYTES, _HALVES), align=2)
        table = _picked(builder, half, half, _LOW_HALF * 2)
    else:
        table = builder.load(at(2, row * 2 * _HALF_BYTES, _CODES), align=2)
    weights = _call(builder, "avx512.permvar.hi.512", _CODES, table, codes)
    builder.store(weights, at(3, row * _ROW_BYTES, _CODES), align=2)


def _unpacking(num_rows: int, bits_above: int) -> Any:
    def body(builder: Any, at: Any) -> None:
        above = None
        for row in range(num_rows):
            if bits_above and row % 16 == 0:
                above = builder.load(at(1, row // 16 * 64, _CODES), align=2)
            if row % 4 == 0:
                words = builder.load(at(0, row // 4 * 64, _CODES), align=2)
            codes = _shifted(builder, words, row % 4 * 4)
            if above is not None:
                codes = _merged(builder, codes, _shifted(builder, above, row % 16 - 4))
            _look_up(builder, at, row, codes, 32 if bits_above else 16)

    @intrinsic
    def unpack(typing_context: Any, low: Any, above: Any, tables: Any, target: Any) -> Any:
        """Look up 32 codes of some outputs and write their weights, row-major.

        Sixteen bits at `low` have the lower four of four outputs, those at `above` the bit above
        these of sixteen. tables: of each output, one behind the other.
        """
        return types.void(*[types.int64] * 4), _on_memory(body)

    return unpack


unpack_four_bits = _unpacking(32, 0)
unpack_five_bits = _unpacking(32, 1)


def _converting(num_rows: int, codes_of: Callable[[Any, Any, int], tuple[Any, Any]]) -> Any:
    """Return an intrinsic that multiplies codes; `codes_of(builder, at, row)` are two Lanes."""

    def body(builder: Any, at: Any) -> None:
        for row in range(num_rows):
            low, high = codes_of(builder, at, row)
            scales = [
                _splat(builder, builder.load(at(pair, row * 4, ir.FloatType()), align=4))
                for pair in (2, 3)
            ]
            values = builder.fmul(low, scales[0]), builder.fmul(high, scales[1])
            weights = _rounded(builder, *values)
            builder.store(weights, at(4, row * _ROW_BYTES, _CODES), align=2)

    @intrinsic
    def unpack(
        typing_context: Any, codes: Any, above: Any, scales: Any, second: Any, target: Any
    ) -> Any:
        """Multiply 32 codes of some outputs by their scales and write the weights.

        scales, second: of the outputs, float32; for the first 16 codes, and for the others.
        """
        return types.void(*[types.int64] * 5), _on_memory(body)

    return unpack


def _six_bits(builder: Any, at: Any, row: int) -> tuple[Any, Any]:
    low = builder.load(at(0, row // 4 * 64, _CODES), align=2)
    above = builder.load(at(1, row // 8 * 64, _CODES), align=2)
    codes = _merged(
        builder, _shifted(builder, low, row % 4 * 4), _shifted(builder, above, row % 8 * 2 - 4)
    )
    signed = builder.ashr(builder.shl(codes, _all(10)), _all(10))
    return tuple(
        builder.sitofp(builder.sext(_picked(builder, signed, signed, half), WORDS), FLOATS)
        for half in (_LOW_HALF, _HIGH_HALF)
    )


def _eight_bits(builder: Any, at: Any, row: int) -> tuple[Any, Any]:
    return tuple(
        _from_int8(builder, builder.load(at(0, row * STEP + half, _BYTES), align=1))
        for half in (0, NUM_LANES)
    )


def _float8(builder: Any, at: Any, row: int) -> tuple[Any, Any]:
    """Return float8_e4m3fn as floats, less a factor of 256: as float16, whose exponent counts from
    15 instead of 7, they are exact, denormal ones too."""

    def converted(half: int) -> Any:
        loaded = builder.load(at(0, row * STEP + half, _BYTES), align=1)

        def constant(value: int) -> Any:
            return ir.Constant(_HALVES, [value] * NUM_LANES)

        # The sign comes to its place twice, the second time where the exponent begins.
        moved = builder.shl(builder.sext(loaded, _HALVES), constant(7))
        return _from_half(builder, builder.and_(moved, constant(0xBFFF)))

    return converted(0), converted(NUM_LANES)


unpack_six_bits = _converting(32, _six_bits)
unpack_eight_bits = _converting(32, _eight_bits)
unpack_float8 = _converting(32, _float8)
