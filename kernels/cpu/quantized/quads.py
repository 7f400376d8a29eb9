"""Quantized panels in quads: four codes of a column in one word, the operand of byte products.

A step of a panel is 32 inputs of 32 columns. Quad q of it has inputs 4q .. 4q + 3 of each column,
one byte for each code, first input lowest. In memory, codes of up to six bits have the lower four
bits of quads j and j + 4 in one byte, and the bits above in planes; see `code_arrays`.

A step is unpacked once for all rows of a batch, to bytes (`unpack_bytes`) or to float32
(`unpack_floats`); a single row is multiplied by the codes as they lie in memory
(`multiply_packed`). Intrinsics take addresses, int64; the caller keeps the memory alive.
"""

from enum import Enum
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedrun.kernels.cpu.quantized.code_arrays import (
    EIGHT_BITS,
    FIVE_BITS,
    FLOAT8,
    FOUR_BITS,
    PANEL,
    QUADS,
    SIX_BITS,
)
from pagedrun.kernels.cpu.simd.arrays import INT8, INT16, INT32, INT64, LINE_BYTES
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, WORDS, spread
from pagedrun.kernels.kernel_set import has_features

QUAD_BYTES = 4 * PANEL
_VECTOR_BYTES = 4 * NUM_LANES
_HALVES = PANEL // NUM_LANES
# Of what kernels have for a group's numbers, float32 for each column: scales, then the codes that
# mean 0, then minima; for products of bytes, scales and then shifts.
NUMBER_BYTES = 4 * PANEL
GROUP_BYTES = 3 * NUMBER_BYTES


def _all(value: int) -> Any:
    return ir.Constant(WORDS, [value] * NUM_LANES)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    if isinstance(offset, int):
        offset = INT64(offset)
    return builder.load(_pointer(builder, builder.add(address, offset), kind), align=4)


def _store(builder: Any, value: Any, address: Any, offset: Any) -> None:
    if isinstance(offset, int):
        offset = INT64(offset)
    builder.store(value, _pointer(builder, builder.add(address, offset), value.type), align=4)


def _prefetch(builder: Any, address: Any, offset: int, num_bytes: int) -> None:
    """Prefetch the cache lines of some bytes, which need not be valid, to L1."""
    byte = INT8.as_pointer()
    hint_type = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
    hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], hint_type)
    for line in range(0, num_bytes, LINE_BYTES):
        place = _pointer(builder, builder.add(address, INT64(offset + line)), INT8)
        builder.call(hint, [place, INT32(0), INT32(3), INT32(1)])  # read, to L1, data


def _quads(
    builder: Any, kind: int, codes: Any, above: Any, j: Any, half: int
) -> list[tuple[Any, Any]]:
    """Return words of quads of half the columns, each with the number of the quad.

    j: runtime number, up to 3 for two quads each, or up to 7 for one with eight bits.
    """
    place = builder.add(builder.mul(j, INT64(QUAD_BYTES)), INT64(half * _VECTOR_BYTES))
    words = _load(builder, codes, place, WORDS)
    if kind in (EIGHT_BITS, FLOAT8):
        return [(j, words)]
    later = builder.add(j, INT64(4))
    found = []
    for group, quad in enumerate((j, later)):
        lower = builder.and_(builder.lshr(words, _all(4)) if group else words, _all(0x0F0F0F0F))
        if kind == FIVE_BITS:
            plane = _load(builder, above, half * _VECTOR_BYTES, WORDS)
            count = spread(builder, builder.trunc(quad, INT32), WORDS)
            bits = builder.and_(builder.lshr(plane, count), _all(0x01010101))
            lower = builder.or_(lower, builder.shl(bits, _all(4)))
        elif kind == SIX_BITS:
            start = group * QUAD_BYTES + half * _VECTOR_BYTES
            plane = _load(builder, above, start, WORDS)
            count = spread(builder, builder.trunc(builder.shl(j, INT64(1)), INT32), WORDS)
            bits = builder.and_(builder.lshr(plane, count), _all(0x03030303))
            lower = builder.or_(lower, builder.shl(bits, _all(4)))
        found.append((quad, lower))
    return found


def _over_quads(builder: Any, kind: int) -> Any:
    """Return a loop over the first argument of `_quads`."""
    count = QUADS if kind in (EIGHT_BITS, FLOAT8) else QUADS // 2
    return cgutils.for_range(builder, INT64(count), intp=INT64)


def unpack_bytes(kind: int, *, in_pairs: bool = False, is_signed: bool = False) -> Any:
    """Return an intrinsic that writes the quads of a step, `QUAD_BYTES` each.

    in_pairs: as numbers of 16 bits, first and third code of each column, then second and fourth.
    is_signed: without the offset that is in memory added to all codes.
    """

    @intrinsic
    def unpack(typing_context: Any, codes: Any, above: Any, offset: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            codes, above, offset, target = arguments
            lanes = ir.VectorType(INT8, 4 * NUM_LANES)
            added = spread(builder, builder.trunc(offset, INT8), lanes) if is_signed else None
            with _over_quads(builder, kind) as loop:
                for half in range(_HALVES):
                    for quad, words in _quads(builder, kind, codes, above, loop.index, half):
                        size = QUAD_BYTES * (2 if in_pairs else 1)
                        place = builder.add(
                            builder.mul(quad, INT64(size)), INT64(half * _VECTOR_BYTES)
                        )
                        if added is not None:
                            words = builder.sub(builder.bitcast(words, lanes), added)
                        if not in_pairs:
                            _store(builder, words, target, place)
                            continue
                        low = builder.and_(words, _all(0x00FF00FF))
                        high = builder.and_(builder.lshr(words, _all(8)), _all(0x00FF00FF))
                        _store(builder, low, target, place)
                        _store(builder, high, target, builder.add(place, INT64(QUAD_BYTES)))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return unpack


def unpack_floats(kind: int, *, rounds: bool) -> Any:
    """Return an intrinsic that writes the weights of a step, float32 [32 inputs, 32 columns].

    rounds: to the nearest bfloat16, ties to even.
    """

    @intrinsic
    def unpack(
        typing_context: Any, codes: Any, above: Any, numbers: Any, second: Any, target: Any
    ) -> Any:
        """numbers, second: addresses of the numbers of groups, for the first 16 inputs of the
        step and for the others."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            codes, above, numbers, second, target = arguments
            with _over_quads(builder, kind) as loop:
                for half in range(_HALVES):
                    found = _quads(builder, kind, codes, above, loop.index, half)
                    for i, (quad, words) in enumerate(found):
                        of_group = second if i else numbers
                        if len(found) == 1:
                            is_later = builder.icmp_signed(">=", quad, INT64(4))
                            of_group = builder.select(is_later, second, numbers)
                        scale, zero, minimum = (
                            _load(builder, of_group, n * NUMBER_BYTES + half * 64, FLOATS)
                            for n in range(3)
                        )
                        for j in range(4):
                            code = builder.and_(builder.lshr(words, _all(8 * j)), _all(0xFF))
                            if kind == FLOAT8:
                                value = _from_float8(builder, code)
                            else:
                                value = builder.fsub(builder.sitofp(code, FLOATS), zero)
                            value = builder.fsub(builder.fmul(value, scale), minimum)
                            if rounds:
                                value = _rounded(builder, value)
                            place = builder.mul(quad, INT64(4 * NUMBER_BYTES))
                            offset = INT64(j * NUMBER_BYTES + half * _VECTOR_BYTES)
                            _store(builder, value, target, builder.add(place, offset))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return unpack


def _from_float8(builder: Any, code: Any) -> Any:
    """Return float8_e4m3fn as float32: exponents count from 7 instead of 127."""
    magnitude = builder.shl(builder.and_(code, _all(0x7F)), _all(20))
    sign = builder.shl(builder.and_(code, _all(0x80)), _all(24))
    bits = builder.bitcast(builder.or_(magnitude, sign), FLOATS)
    return builder.fmul(bits, ir.Constant(FLOATS, [2.0**120] * NUM_LANES))


def _rounded(builder: Any, value: Any) -> Any:
    """Round finite floats to bfloat16, ties to even."""
    bits = builder.bitcast(value, WORDS)
    odd = builder.and_(builder.lshr(bits, _all(16)), _all(1))
    rounded = builder.add(builder.add(bits, _all(0x7FFF)), odd)
    return builder.bitcast(builder.and_(rounded, _all(0xFFFF0000)), FLOATS)


# Vectors of a block of columns, and how bytes are multiplied here.
LANES = 16 if has_features("avx512f", "avx512bw") else 8
BLOCK_COLUMNS = 2 * LANES
HAS_QUAD_PRODUCTS = has_features("avx512f", "avx512vnni") or has_features("avxvnni")
_HAS_BYTE_PRODUCTS = has_features("avx2")
# Products of two codes and two inputs of at most 127 that fit 16 bits together: 15, 31 or 63 * 127
# * 2 * terms < 2^15.
_TERMS = {FOUR_BITS: 8, FIVE_BITS: 4, SIX_BITS: 2}
# Prefetch distances in a weight's memory.
BYTES_AHEAD, ABOVE_AHEAD = 4096, 1024
_PLANE_BYTES = {FIVE_BITS: QUAD_BYTES, SIX_BITS: 2 * QUAD_BYTES}  # of a step, above four bits


def takes_pairs(kind: int) -> bool:
    """Return True if products of a kind of codes take numbers of 16 bits, two at a time.

    Two products of codes of eight bits do not fit 16 bits.
    """
    return kind == EIGHT_BITS and _HAS_BYTE_PRODUCTS and not HAS_QUAD_PRODUCTS


class Finish(Enum):
    """Use of an integer sum: added to a total of 32 bits, or scaled and added to a float.

    Scaled: `fma(sum, row's scale * column's scale, total)`; shifted: then `fma(-shift, row's scaled
    sum, total)`. These are the same bits on every processor.
    """

    INTEGER = "integer"
    SCALED = "scaled"
    SHIFTED = "shifted"


def multiply_quads(kind: int, height: int, finish: Finish, stride: int | None = None) -> Any:
    """Return an intrinsic that multiplies runs of quads and adds the products to totals.

    A block has `height` rows and `BLOCK_COLUMNS` columns. stride: rows of the block in memory of
    which these are some; None: these. A run of quads is an integer sum; totals stay in registers
    between runs.
    """
    word_vector, floats = ir.VectorType(INT32, LANES), ir.VectorType(ir.FloatType(), LANES)
    num_bytes = 4 * LANES
    rows_in_memory = height if stride is None else stride

    @intrinsic
    def multiply(
        typing_context: Any,
        inputs: Any,
        weights: Any,
        num_quads: Any,
        num_runs: Any,
        of_rows: Any,
        numbers: Any,
        totals: Any,
    ) -> Any:
        """inputs: words [num_runs * num_quads, rows], or two of them with pairs. weights: unpacked
        quads from the block's first column on. of_rows: [num_runs, 3, rows]: where integer sums
        start, scales, scaled sums. numbers: of each run scales, and behind `NUMBER_BYTES` shifts.
        totals: [height, 32]."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            inputs, weights, num_quads, num_runs, of_rows, numbers, totals = arguments
            blocks = [(row, vector) for row in range(height) for vector in range(2)]
            kind_of_total = word_vector if finish is Finish.INTEGER else floats
            found = [cgutils.alloca_once(builder, kind_of_total) for _ in blocks]
            places = [row * NUMBER_BYTES + vector * num_bytes for row, vector in blocks]
            for total, place in zip(found, places, strict=True):
                builder.store(_load(builder, totals, place, kind_of_total), total)
            dot = _Dot(builder, kind, height, rows_in_memory, word_vector)
            steps = builder.udiv(num_quads, INT64(dot.quads_at_once))

            def add_run(run: Any, sums: list[Any]) -> None:
                first = builder.mul(run, num_quads)
                x, w = (
                    builder.add(each, builder.mul(first, INT64(size)))
                    for each, size in ((inputs, dot.input_bytes), (weights, dot.weight_bytes))
                )
                with cgutils.for_range(builder, steps, intp=INT64) as loop:
                    here, there = (
                        builder.add(each, builder.mul(loop.index, INT64(size * dot.quads_at_once)))
                        for each, size in ((x, dot.input_bytes), (w, dot.weight_bytes))
                    )
                    dot.add(here, there, sums)

            with cgutils.for_range(builder, num_runs, intp=INT64) as loop:
                if finish is Finish.INTEGER:
                    add_run(loop.index, found)
                else:
                    of_run = builder.mul(loop.index, INT64(12 * rows_in_memory))
                    of_run = builder.add(of_rows, of_run)
                    columns = builder.mul(loop.index, INT64(2 * NUMBER_BYTES))
                    columns = builder.add(numbers, columns)
                    sums = [cgutils.alloca_once(builder, word_vector) for _ in blocks]
                    for (row, _), total in zip(blocks, sums, strict=True):
                        one = _load(builder, of_run, 4 * row, INT32)
                        builder.store(spread(builder, one, word_vector), total)
                    add_run(loop.index, sums)
                    for row in range(height):
                        own = range(2 * row, 2 * row + 2)
                        _finish(
                            builder,
                            finish,
                            [sums[i] for i in own],
                            builder.add(of_run, INT64(4 * row)),
                            4 * rows_in_memory,
                            columns,
                            [found[i] for i in own],
                        )
            for total, place in zip(found, places, strict=True):
                _store(builder, builder.load(total), totals, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return multiply


def _finish(
    builder: Any,
    finish: Finish,
    sums: list[Any],
    of_row: Any,
    stride: int,
    columns: Any,
    totals: list[Any],
) -> None:
    """Add a row's integer sums to its totals, scaled; see `Finish`.

    sums, totals: pointers to vectors of neighboring columns. of_row: address of the start of the
    row's sums, after `stride` bytes of its scale, then of its scaled sum. columns: address of
    scales, and of shifts `NUMBER_BYTES` after them.
    """
    floats = ir.VectorType(ir.FloatType(), LANES)
    fma = ir.FunctionType(floats, [floats] * 3)
    fma = cgutils.get_or_insert_function(builder.module, fma, f"llvm.fma.v{LANES}f32")
    scale, scaled = (
        spread(builder, _load(builder, of_row, n * stride, ir.FloatType()), floats) for n in (1, 2)
    )
    for vector, (total, result) in enumerate(zip(sums, totals, strict=True)):
        place = vector * 4 * LANES
        factor = builder.fmul(scale, _load(builder, columns, place, floats))
        value = builder.sitofp(builder.load(total), floats)
        value = builder.call(fma, [value, factor, builder.load(result)])
        if finish is Finish.SHIFTED:
            shift = _load(builder, columns, NUMBER_BYTES + place, floats)
            negative = builder.fsub(ir.Constant(floats, [-0.0] * LANES), shift)
            value = builder.call(fma, [negative, scaled, value])
        builder.store(value, result)


def reads_packed(kind: int) -> bool:
    """Return True if `multiply_packed` supports a kind of codes here.

    `vpsignb`, which products of eight bits need without `vpdpbusd`, has no form for AVX-512.
    """
    return not takes_pairs(kind) or LANES == 8


def is_signed_when_packed(kind: int) -> bool:
    """Return True if `multiply_packed` takes codes less 128, which two products of 16 bits hold."""
    return takes_pairs(kind)


def multiply_packed(kind: int, finish: Finish) -> Any:
    """Return an intrinsic that multiplies a row by a panel's steps as they lie in memory.

    Sums, totals and their order are those of `multiply_quads`; here a run has whole steps.
    """
    words, floats = ir.VectorType(INT32, LANES), ir.VectorType(ir.FloatType(), LANES)
    places = range(0, NUMBER_BYTES, 4 * LANES)

    @intrinsic
    def multiply(
        typing_context: Any,
        inputs: Any,
        codes: Any,
        above: Any,
        step_bytes: Any,
        above_bytes: Any,
        num_steps: Any,
        num_runs: Any,
        of_row: Any,
        numbers: Any,
        totals: Any,
    ) -> Any:
        """inputs: words of the row's quads. codes, above: of the first step; a step has so many
        bytes of each. num_steps: of a run. Others as in `multiply_quads`; totals: [32]."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            inputs, codes, above, step_bytes, above_bytes, num_steps, num_runs = arguments[:7]
            of_row, numbers, totals = arguments[7:]
            found = [cgutils.alloca_once(builder, floats) for _ in places]
            sums = [cgutils.alloca_once(builder, words) for _ in places]
            for total, place in zip(found, places, strict=True):
                builder.store(_load(builder, totals, place, floats), total)
            dot = _Dot(builder, kind, 1, 1, words)
            with cgutils.for_range(builder, num_runs, intp=INT64) as runs:
                of_run = builder.add(of_row, builder.mul(runs.index, INT64(12)))
                start = spread(builder, _load(builder, of_run, 0, INT32), words)
                for each in sums:
                    builder.store(start, each)
                first = builder.mul(runs.index, num_steps)
                with cgutils.for_range(builder, num_steps, intp=INT64) as steps:
                    step = builder.add(first, steps.index)
                    dot.add_packed(
                        builder.add(inputs, builder.mul(step, INT64(4 * QUADS))),
                        builder.add(codes, builder.mul(step, step_bytes)),
                        builder.add(above, builder.mul(step, above_bytes)),
                        sums,
                    )
                columns = builder.mul(runs.index, INT64(2 * NUMBER_BYTES))
                columns = builder.add(numbers, columns)
                _finish(builder, finish, sums, of_run, 4, columns, found)
            for total, place in zip(found, places, strict=True):
                _store(builder, builder.load(total), totals, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return multiply


class _Dot:
    """Products of unsigned codes with signed inputs on this processor, in sums of 32 bits.

    `vpdpbusd` adds four products to a sum. `vpmaddubsw` adds two in 16 bits, saturated, which
    `_TERMS` never reaches; `vpmaddwd` then adds these, or products of numbers of 16 bits.
    """

    def __init__(self, builder: Any, kind: int, height: int, stride: int, words: Any) -> None:
        self._builder, self._height, self._stride, self._words = builder, height, stride, words
        self._kind = kind
        self._lanes = words.count
        self._in_pairs = takes_pairs(kind)
        self.quads_at_once = 1
        if _HAS_BYTE_PRODUCTS and not HAS_QUAD_PRODUCTS and not self._in_pairs:
            self.quads_at_once = _TERMS[kind]
        self.input_bytes = 4 * stride * (2 if self._in_pairs else 1)
        self.weight_bytes = QUAD_BYTES * (2 if self._in_pairs else 1)

    def add(self, inputs: Any, weights: Any, sums: list[Any]) -> None:
        """Add the products of `quads_at_once` quads."""
        if self._in_pairs:
            for part in range(2):
                later = self._builder.add(weights, INT64(part * QUAD_BYTES))
                self._add(self._builder.add(inputs, INT64(4 * self._stride * part)), later, sums)
        elif self.quads_at_once == 1:
            self._add(inputs, weights, sums)
        else:
            self._add_short(inputs, weights, sums)

    def add_packed(self, inputs: Any, codes: Any, above: Any, sums: list[Any]) -> None:
        """Add the products of a row with a step in memory; sums: of all columns."""
        builder, is_signed = self._builder, is_signed_when_packed(self._kind)
        in_bytes = _HAS_BYTE_PRODUCTS and not HAS_QUAD_PRODUCTS
        terms = 1 if is_signed else _TERMS.get(self._kind, 1)
        partial: list[Any] = [None] * len(sums)
        num_added = 0
        if self._kind in (FIVE_BITS, SIX_BITS):
            _prefetch(builder, above, ABOVE_AHEAD, _PLANE_BYTES[self._kind])
        for j in range(QUADS if self._kind == EIGHT_BITS else QUADS // 2):
            _prefetch(builder, codes, j * QUAD_BYTES + BYTES_AHEAD, QUAD_BYTES)
            halves = [
                _quads(builder, self._kind, codes, above, INT64(j), half) for half in range(_HALVES)
            ]
            for of_quad in zip(*halves, strict=True):
                place = builder.mul(of_quad[0][0], INT64(4))
                one = _load(builder, builder.add(inputs, place), 0, INT32)
                one = spread(builder, one, self._words)
                vectors = [part for _, words in of_quad for part in self._parts(words)]
                num_added += 1
                for i, (codes_of_quad, total) in enumerate(zip(vectors, sums, strict=True)):
                    if not in_bytes:
                        added = self._add_quads(builder.load(total), codes_of_quad, one)
                        builder.store(added, total)
                        continue
                    multiply = self._signed_products if is_signed else self._byte_products
                    product = multiply(codes_of_quad, one)
                    partial[i] = product if partial[i] is None else builder.add(partial[i], product)
                    if num_added % terms == 0:
                        self._add_halves(partial[i], total)
                        partial[i] = None

    def _parts(self, words: Any) -> list[Any]:
        """Return vectors of `LANES` words of one."""
        if words.type.count == self._lanes:
            return [words]
        orders = ir.VectorType(INT32, self._lanes)
        return [
            self._builder.shuffle_vector(
                words, words, ir.Constant(orders, [*range(start, start + self._lanes)])
            )
            for start in range(0, words.type.count, self._lanes)
        ]

    def _signed_products(self, codes: Any, inputs: Any) -> Any:
        """Return the products of codes less 128: of their magnitudes with inputs of their sign."""
        builder, kind = self._builder, ir.VectorType(INT8, 4 * self._lanes)
        codes, inputs = (builder.bitcast(each, kind) for each in (codes, inputs))
        codes = builder.xor(codes, ir.Constant(kind, [0x80] * kind.count))
        inputs = self._call("llvm.x86.avx2.psign.b", kind, inputs, codes)
        absolute = ir.FunctionType(kind, [kind, ir.IntType(1)])
        name = f"llvm.abs.v{kind.count}i8"
        absolute = cgutils.get_or_insert_function(builder.module, absolute, name)
        magnitudes = builder.call(absolute, [codes, ir.IntType(1)(0)])
        return self._byte_products(magnitudes, inputs)

    def _add_halves(self, products: Any, total: Any) -> None:
        """Add numbers of 16 bits to a sum, two at a time."""
        halves = products.type
        ones = ir.Constant(halves, [1] * halves.count)
        added = self._pair_products(products, ones)
        self._builder.store(self._builder.add(self._builder.load(total), added), total)

    def _add(self, inputs: Any, weights: Any, sums: list[Any]) -> None:
        multiply = self._add_pairs if self._in_pairs else self._add_quads
        operands = self._operands(weights)
        for row in range(self._height):
            one = self._input(inputs, row)
            for vector, operand in enumerate(operands):
                total = sums[2 * row + vector]
                self._builder.store(multiply(self._builder.load(total), operand, one), total)

    def _add_short(self, inputs: Any, weights: Any, sums: list[Any]) -> None:
        """Add products of bytes in 16 bits, then these."""
        partial: list[Any] = [None] * len(sums)
        for quad in range(self.quads_at_once):
            operands = self._operands(self._builder.add(weights, INT64(quad * QUAD_BYTES)))
            for row in range(self._height):
                place = self._builder.add(inputs, INT64(4 * self._stride * quad))
                one = self._input(place, row)
                for vector, operand in enumerate(operands):
                    i = 2 * row + vector
                    product = self._byte_products(operand, one)
                    partial[i] = (
                        product if partial[i] is None else self._builder.add(partial[i], product)
                    )
        for total, part in zip(sums, partial, strict=True):
            self._add_halves(part, total)

    def _operands(self, weights: Any) -> list[Any]:
        return [_load(self._builder, weights, 4 * self._lanes * v, self._words) for v in range(2)]

    def _input(self, inputs: Any, row: int) -> Any:
        return spread(self._builder, _load(self._builder, inputs, 4 * row, INT32), self._words)

    def _add_quads(self, total: Any, codes: Any, inputs: Any) -> Any:
        if HAS_QUAD_PRODUCTS:
            name = f"llvm.x86.avx512.vpdpbusd.{32 * self._lanes}"
            return self._call(name, self._words, total, codes, inputs)
        builder = self._builder
        for j in range(4):
            places = [
                ir.Constant(self._words, [bits] * self._lanes) for bits in (8 * j, 24 - 8 * j)
            ]
            code = builder.and_(
                builder.lshr(codes, places[0]), ir.Constant(self._words, [0xFF] * self._lanes)
            )
            upper = builder.shl(inputs, places[1])
            number = builder.ashr(upper, ir.Constant(self._words, [24] * self._lanes))
            total = builder.add(total, builder.mul(code, number))
        return total

    def _add_pairs(self, total: Any, codes: Any, inputs: Any) -> Any:
        halves = ir.VectorType(INT16, 2 * self._lanes)
        one, other = (self._builder.bitcast(each, halves) for each in (codes, inputs))
        return self._builder.add(total, self._pair_products(one, other))

    def _byte_products(self, codes: Any, inputs: Any) -> Any:
        name = "avx512.pmaddubs.w.512" if self._lanes == 16 else "avx2.pmadd.ub.sw"
        kind = ir.VectorType(INT8, 4 * self._lanes)
        one, other = (self._builder.bitcast(each, kind) for each in (codes, inputs))
        return self._call(f"llvm.x86.{name}", ir.VectorType(INT16, 2 * self._lanes), one, other)

    def _pair_products(self, one: Any, other: Any) -> Any:
        name = "avx512.pmaddw.d.512" if self._lanes == 16 else "avx2.pmadd.wd"
        return self._call(f"llvm.x86.{name}", self._words, one, other)

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [each.type for each in arguments])
        function = cgutils.get_or_insert_function(self._builder.module, kind, name)
        return self._builder.call(function, arguments)
