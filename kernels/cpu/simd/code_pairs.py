"""Codes of few bits turned into words of two bfloat16 and multiplied: AVX-512 with its bfloat16.

A code of b bits is put behind the binary point of a float32 that is 1: that is `1 + code / 2^b`,
without a conversion. A subtraction and a multiplication give the weight, or one fused operation
where products with scales are exact. Two registers of them are rounded to one of bfloat16, to
nearest, ties to even; denormal results become 0, as which products of bfloat16 take them anyhow.

All is said by addresses, int64, as in `pagedrun.kernels.cpu.simd.codes`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedrun.kernels.cpu.simd.block_product import PAIRS
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, WORDS
from pagedrun.kernels.cpu.simd.pointer import INT8, INT16, INT32

LANES = NUM_LANES
PAIRS_OF_STEP = 16  # of inputs
SIDES = 4  # registers of float32 that a panel's pair of inputs takes
LINE = 64
# Bits of a word where the lower four of eight pairs' codes begin, when all have four: 15 and 19 are
# where a float32's digits end, so of two neighbours one move brings both there.
NIBBLE_PLACES = (15, 19, 23, 27, 7, 11, 31, 3)
_MOVES = (0, -8, 8, 16)  # of these, by two
ABOVE = {5: 1, 6: 2}

# What kernels have for a group: lines of constants, each for all sides.
SCALES, NEAR_SCALES, OFFSETS, NEAR_OFFSETS, MINIMA = range(5)
CONSTANT_BYTES = 5 * SIDES * LINE

_BYTES, _HALVES = ir.VectorType(INT8, NUM_LANES), ir.VectorType(INT16, NUM_LANES)
_ONE = 0x3F800000


@dataclass(frozen=True, slots=True)
class PairForm:
    """Codes of `num_bits`, 0: float8. is_fused: products with scales are exact, also of what is
    subtracted."""

    num_bits: int
    is_fused: bool


def _all(value: int) -> Any:
    return ir.Constant(WORDS, [value & 0xFFFFFFFF] * NUM_LANES)


def _at(builder: Any, address: Any, num_bytes: int, kind: Any) -> Any:
    place = builder.add(address, address.type(num_bytes))
    return builder.inttoptr(place, kind.as_pointer())


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments)


def _moved(builder: Any, words: Any, by: int) -> Any:
    """Return words shifted to the left, or right; 16: their halves exchanged."""
    if by == 0:
        return words
    if by < 0:
        return builder.lshr(words, _all(-by))
    return builder.shl(words, _all(by))


def _rotated(builder: Any, words: Any) -> Any:
    return _call(builder, "llvm.fshl.v16i32", WORDS, words, words, _all(16))


class _Codes:
    """Reads what lies at `codes` and `above` of a step, each word once."""

    def __init__(self, builder: Any, form: PairForm, codes: Any, above: Any) -> None:
        self._builder, self._form = builder, form
        self._codes, self._above = codes, above
        self._kept: dict[tuple[object, ...], Any] = {}

    def _once(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _words(self, block: int, side: int) -> Any:
        place = (block * SIDES + side) * LINE
        return self._once(
            ("words", place),
            lambda: self._builder.load(_at(self._builder, self._codes, place, WORDS), align=4),
        )

    def value(self, pair: int, side: int) -> tuple[Any, bool]:
        """Return sixteen codes as `1 + code / 2^n`, or float8 as they are, and whether `n` is by
        four more than the number of bits."""
        bits = self._form.num_bits
        if bits == 0:
            return self._float8(pair, side), False
        if bits == 4:
            return self._of_four(pair, side)
        builder = self._builder
        if bits == 8:
            words = _moved(builder, self._words(pair // 4, side), 15 - pair % 4 * 8)
            digits = builder.and_(words, _all(0xFF << 15))
        else:
            place = 23 - bits
            words = _moved(builder, self._words(pair // 8, side), place - pair % 8 * 4)
            digits = builder.and_(words, _all(15 << place))
            upper = _moved(builder, self._upper(side), place + 4 - pair * ABOVE[bits])
            mask = ((1 << ABOVE[bits]) - 1) << (place + 4)
            digits = builder.or_(digits, builder.and_(upper, _all(mask)))
        return self._behind_one(digits), False

    def _upper(self, side: int) -> Any:
        builder, bits = self._builder, self._form.num_bits
        if bits == 6:
            place = _at(builder, self._above, side * LINE, WORDS)
            return self._once(("above", side), lambda: builder.load(place, align=4))
        place = _at(builder, self._above, side * LINE // 2, _HALVES)
        return self._once(
            ("above", side), lambda: builder.zext(builder.load(place, align=2), WORDS)
        )

    def _of_four(self, pair: int, side: int) -> tuple[Any, bool]:
        builder, block, turn = self._builder, pair // 8, pair % 8 // 2
        words = self._words(block, side)
        move = _MOVES[turn]
        moved = self._once(
            ("moved", block, side, turn),
            lambda: _rotated(builder, words) if move == 16 else _moved(builder, words, move),
        )
        place = 19 if pair % 2 else 15
        return self._behind_one(builder.and_(moved, _all(15 << place))), place == 15

    def _behind_one(self, digits: Any) -> Any:
        return self._builder.bitcast(self._builder.or_(digits, _all(_ONE)), FLOATS)

    def _float8(self, pair: int, side: int) -> Any:
        """Return float8_e4m3fn less a factor of 256: as float16 they are exact."""
        builder = self._builder
        place = _at(builder, self._codes, (pair * SIDES + side) * NUM_LANES, _BYTES)
        wide = builder.sext(builder.load(place, align=1), _HALVES)
        # The sign comes to its place twice, the second time where the exponent begins.
        moved = builder.shl(wide, ir.Constant(_HALVES, [7] * NUM_LANES))
        bits = builder.and_(moved, ir.Constant(_HALVES, [0xBFFF] * NUM_LANES))
        halves = builder.bitcast(bits, ir.VectorType(ir.HalfType(), NUM_LANES))
        return builder.fpext(halves, FLOATS)


class _Weights:
    """Makes registers of weights of a step whose constants lie at `first`, or at `second` from the
    ninth pair on."""

    def __init__(self, builder: Any, form: PairForm, arguments: Any) -> None:
        codes, above, self._first, self._second = arguments
        self._builder, self._form = builder, form
        self._codes = _Codes(builder, form, codes, above)
        self._kept: dict[tuple[int, int, int], Any] = {}

    def _constant(self, half: int, name: int, side: int) -> Any:
        key = half, name, side
        if key not in self._kept:
            start = self._second if half else self._first
            place = _at(self._builder, start, (name * SIDES + side) * LINE, FLOATS)
            self._kept[key] = self._builder.load(place, align=4)
        return self._kept[key]

    def _weight(self, pair: int, side: int) -> Any:
        builder, half = self._builder, pair // 8
        value, is_near = self._codes.value(pair, side)
        scale = self._constant(half, NEAR_SCALES if is_near else SCALES, side)
        if self._form.num_bits == 0:
            return builder.fmul(value, scale)
        offset = self._constant(half, NEAR_OFFSETS if is_near else OFFSETS, side)
        if self._form.is_fused:
            return _call(builder, "llvm.fma.v16f32", FLOATS, value, scale, offset)
        code = builder.fsub(value, offset)
        minimum = self._constant(half, MINIMA, side)
        return _call(builder, "llvm.fma.v16f32", FLOATS, code, scale, minimum)

    def pair(self, pair: int, part: int) -> Any:
        """Return a pair of inputs of 16 outputs, which are half `part` of a panel."""
        low, high = (self._weight(pair, 2 * part + side) for side in (0, 1))
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        return _call(self._builder, name, PAIRS, high, low)


def unpack_pairs(form: PairForm) -> Any:
    """Return an intrinsic that writes a step's weights, [16 pairs, 32 outputs] words."""

    @intrinsic
    def unpack(
        typing_context: Any, codes: Any, above: Any, first: Any, second: Any, target: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights = _Weights(builder, form, arguments[:4])
            for pair in range(PAIRS_OF_STEP):
                for part in (0, 1):
                    place = _at(builder, arguments[4], (2 * pair + part) * LINE, WORDS)
                    words = builder.bitcast(weights.pair(pair, part), WORDS)
                    builder.store(words, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return unpack


def multiply_pairs(form: PairForm, num_rows: int) -> Any:
    """Return an intrinsic that adds a step's products with some rows to their sums."""

    @intrinsic
    def multiply(
        typing_context: Any,
        codes: Any,
        above: Any,
        first: Any,
        second: Any,
        inputs: Any,
        stride: Any,
        sums: Any,
    ) -> Any:
        """inputs: the step's of the first row, bfloat16; `stride` bytes from row to row. sums:
        [num_rows, 32] float32."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights = _Weights(builder, form, arguments[:4])
            inputs, stride, sums = arguments[4:]
            rows = [
                builder.add(inputs, builder.mul(stride, stride.type(i))) for i in range(num_rows)
            ]
            places = [
                [_at(builder, sums, (2 * row + part) * LINE, FLOATS) for part in (0, 1)]
                for row in range(num_rows)
            ]
            totals = [[builder.load(place, align=4) for place in each] for each in places]
            for pair in range(PAIRS_OF_STEP):
                both = [weights.pair(pair, part) for part in (0, 1)]
                for row in range(num_rows):
                    word = builder.load(_at(builder, rows[row], 4 * pair, INT32), align=2)
                    one = builder.insert_element(ir.Constant(WORDS, ir.Undefined), word, INT32(0))
                    zeros = ir.Constant(WORDS, [0] * NUM_LANES)
                    all_alike = builder.bitcast(builder.shuffle_vector(one, one, zeros), PAIRS)
                    for part in (0, 1):
                        totals[row][part] = _call(
                            builder,
                            "llvm.x86.avx512bf16.dpbf16ps.512",
                            FLOATS,
                            *(totals[row][part], all_alike, both[part]),
                        )
            for each, of_row in zip(places, totals, strict=True):
                for place, total in zip(each, of_row, strict=True):
                    builder.store(total, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return multiply


def write_constants(form: PairForm) -> Any:
    """Return an intrinsic that writes what a group's codes are multiplied with."""

    @intrinsic
    def write(typing_context: Any, scales: Any, zeros: Any, minima: Any, target: Any) -> Any:
        """scales, zeros (of codes from 0 on), minima: float32 of 32 outputs. target: the address of
        `CONSTANT_BYTES`."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            for side in range(SIDES):
                scale, zero, minimum = (_both_inputs(builder, each, side) for each in arguments[:3])
                written = _constants(builder, form, scale, zero, minimum)
                for name, value in written.items():
                    place = _at(builder, arguments[3], (name * SIDES + side) * LINE, FLOATS)
                    builder.store(value, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return write


def _both_inputs(builder: Any, numbers: Any, side: int) -> Any:
    loaded = builder.load(_at(builder, numbers, side // 2 * LINE, FLOATS), align=4)
    lanes = [side % 2 * 8 + lane // 2 for lane in range(NUM_LANES)]
    return builder.shuffle_vector(loaded, loaded, ir.Constant(WORDS, lanes))


def _constants(builder: Any, form: PairForm, scale: Any, zero: Any, minimum: Any) -> dict[int, Any]:
    if form.num_bits == 0:
        return {SCALES: scale}

    def number(value: float) -> Any:
        return ir.Constant(FLOATS, [value] * NUM_LANES)

    written = {}
    near = ((SCALES, OFFSETS, 0), (NEAR_SCALES, NEAR_OFFSETS, 4))
    for scales, offsets, more in near if form.num_bits == 4 else near[:1]:
        factor = float(1 << (form.num_bits + more))
        written[scales] = builder.fmul(scale, number(factor))
        beyond = builder.fadd(zero, number(factor))
        if form.is_fused:
            written[offsets] = builder.fneg(builder.fmul(beyond, scale))
        else:
            written[offsets] = builder.fmul(beyond, number(1.0 / factor))
    if not form.is_fused:
        written[MINIMA] = builder.fneg(minimum)
    return written
