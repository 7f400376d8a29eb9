"""Chains of `vdpbf16ps` over quantized codes, looked up as words of two bfloat16.

A code without its scale is an integer of up to eight bits or a float8: exact in bfloat16. One
lookup gives the operand of a product, and scales multiply sums. The chain of an output starts at 0,
adds neighboring pairs of inputs of one group, is multiplied by the group's scale in float32 and
added to the total, rounded once. Where codes are shifted by a zero point or a minimum, the shift
times the sum of the chain's inputs is added too.

Lookups (`vpermw` and others) use the lower bits of an index and ignore the rest, which saves masks.
Codes of eight bits are looked up byte by byte, apart from their sign (AVX512-VBMI). All arguments
are addresses, int64, as in `pagedrun.kernels.cpu.quantized.unpack`.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedrun.kernels.cpu.simd.arrays import INT8, INT16, INT32, INT64
from pagedrun.kernels.cpu.simd.block_product import PAIRS
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, WORDS

HALVES = 2  # of a panel's 32 outputs, each a register
LINE = 64

PANEL_BYTES = HALVES * LINE  # of a float32 for each output of a panel
# A panel's numbers of a chain: scales, and behind them what the sum of inputs is multiplied with.
NUMBER_BYTES = 2 * PANEL_BYTES
MOST_CHAINS = 2  # of a step
_BYTES_AHEAD = 4096  # prefetch distance in a weight's memory


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(one, one, ir.Constant(WORDS, [0] * NUM_LANES))


class _Chains:
    """Sums of products of some rows with some panels, in registers.

    totals: address of the accumulators, [num_panels, num_rows, 32] float32. is_shifted: sums of
    inputs are added as well.
    """

    def __init__(
        self, builder: Any, num_panels: int, num_rows: int, totals: Any, is_shifted: bool
    ) -> None:
        self._builder, self._rows, self._panels = builder, range(num_rows), range(num_panels)
        self._is_shifted = is_shifted
        self._zero = ir.Constant(FLOATS, [0.0] * NUM_LANES)
        names = itertools.product(self._panels, self._rows, range(HALVES))
        self._totals = {
            name: address_of(builder, totals, i * LINE, FLOATS) for i, name in enumerate(names)
        }
        self._sums = {name: cgutils.alloca_once(builder, FLOATS) for name in self._totals}

    def hold_totals(self) -> Callable[[], None]:
        """Load totals to registers; return the function that stores them."""
        builder, in_memory = self._builder, self._totals
        self._totals = {name: cgutils.alloca_once(builder, FLOATS) for name in in_memory}
        for name, place in in_memory.items():
            builder.store(builder.load(place, align=4), self._totals[name])

        def write() -> None:
            for name, place in in_memory.items():
                builder.store(builder.load(self._totals[name]), place, align=4)

        return write

    def begin(self) -> None:
        """Set all chains to 0."""
        for place in self._sums.values():
            self._builder.store(self._zero, place)

    def rows_at(self, address: Any, stride: Any) -> list[Any]:
        """Return the addresses of all rows, given that of the first row."""
        builder = self._builder
        return [builder.add(address, builder.mul(stride, INT64(row))) for row in self._rows]

    def add(self, rows: Sequence[Any], pair: int, numbers: Sequence[Sequence[Any]]) -> None:
        """Add the products of one pair of the inputs at `rows` with each panel's code values."""
        for row, address in enumerate(rows):
            pair_of_inputs = _inputs_at(self._builder, address, pair)
            for (panel, of_panel), half in itertools.product(enumerate(numbers), range(HALVES)):
                place = self._sums[panel, row, half]
                total = self._builder.load(place)
                name = "x86.avx512bf16.dpbf16ps.512"
                given = total, pair_of_inputs, of_panel[half]
                self._builder.store(call(self._builder, name, FLOATS, *given), place)

    def end(self, numbers: Any, input_sums: Any, stride: Any) -> None:
        """Add the scaled chains to the totals.

        numbers: a panel's scales and shifts, each panel's `NUMBER_BYTES` for the chains of a step
        behind the one before. input_sums: of the first row's inputs of the chain; stride: bytes to
        the next row's.
        """
        builder = self._builder
        shifting = self._input_sums(input_sums, stride) if self._is_shifted else []
        for panel, half in itertools.product(self._panels, range(HALVES)):
            first = MOST_CHAINS * panel * NUMBER_BYTES + half * LINE
            scale = load_from(builder, numbers, first, FLOATS)
            for row in self._rows:
                place = self._totals[panel, row, half]
                chain_sum = builder.load(self._sums[panel, row, half])
                total = builder.load(place, align=4)
                total = call(builder, "fma.v16f32", FLOATS, chain_sum, scale, total)
                if shifting:
                    shift = load_from(builder, numbers, first + PANEL_BYTES, FLOATS)
                    total = call(builder, "fma.v16f32", FLOATS, shifting[row], shift, total)
                builder.store(total, place, align=4)

    def _input_sums(self, address: Any, stride: Any) -> list[Any]:
        """Return one number of each row, in all lanes."""
        found = (
            load_from(self._builder, row, 0, ir.FloatType())
            for row in self.rows_at(address, stride)
        )
        return [_splat(self._builder, each, FLOATS) for each in found]


def _inputs_at(builder: Any, address: Any, pair: int) -> Any:
    word = load_from(builder, address, 4 * pair, INT32)
    return builder.bitcast(_splat(builder, word, WORDS), PAIRS)


@dataclass(frozen=True, slots=True)
class PairForm:
    """Codes of `num_bits`. is_shifted: there are zero points or minima. is_converted: codes of
    eight bits are int8 and not looked up."""

    num_bits: int
    is_shifted: bool = False
    is_converted: bool = False

    @property
    def step_bytes(self) -> int:
        """Bytes of a panel's step, of the lower four bits or of whole codes."""
        return 1024 if self.num_bits == 8 else 512

    @property
    def above_bytes(self) -> int:
        """Bytes of a panel's step, of the bits above four."""
        return 128 * ABOVE.get(self.num_bits, 0)

    @property
    def chains_of_step(self) -> int:
        """Number of chains of a step: two for six bits, whose groups may have sixteen inputs."""
        return 2 if self.num_bits == 6 else 1


def multiply_pairs(form: PairForm, num_panels: int, num_rows: int) -> Any:
    """Return an intrinsic that adds the products of one chain with rows to totals."""

    @intrinsic
    def multiply(
        typing_context: Any,
        places: Any,
        distances: Any,
        tables: Any,
        num_steps: Any,
        inputs: Any,
        input_sums: Any,
        strides: Any,
        numbers: Any,
        totals: Any,
    ) -> Any:
        """places: of codes and of the bits above, a pair; distances: from there to the next
        panel's. inputs: the chain's of the first row, bfloat16; strides: bytes from row to row, of
        inputs and of `input_sums`. numbers, totals: see `_Chains`."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            places, distances, tables, num_steps, inputs, input_sums, strides = arguments[:7]
            codes, above = (builder.extract_value(places, i) for i in (0, 1))
            to_next, to_next_above = (builder.extract_value(distances, i) for i in (0, 1))
            stride, sums_stride = (builder.extract_value(strides, i) for i in (0, 1))
            made = CodeNumbers(builder, form, tables)
            chains = _Chains(builder, num_panels, num_rows, arguments[8], form.is_shifted)

            def end(chain: int) -> None:
                numbers = builder.add(arguments[7], INT64(chain * NUMBER_BYTES))
                chains.end(numbers, input_sums, sums_stride)

            chains.begin()
            with cgutils.for_range(builder, num_steps, intp=INT64) as loop:
                here = builder.add(codes, builder.mul(loop.index, INT64(form.step_bytes)))
                here_above = builder.add(above, builder.mul(loop.index, INT64(form.above_bytes)))
                x = builder.add(inputs, builder.mul(loop.index, INT64(4 * PAIRS_OF_STEP)))
                of_panels = []
                for _ in range(num_panels):
                    of_panels.append(made.of_step(here, here_above))
                    _ask_for(builder, here, form.step_bytes // LINE)
                    here = builder.add(here, to_next)
                    here_above = builder.add(here_above, to_next_above)
                rows = chains.rows_at(x, stride)
                for pair in range(PAIRS_OF_STEP):
                    if form.chains_of_step == 2 and pair == PAIRS_OF_STEP // 2:
                        end(0)
                        chains.begin()
                    chains.add(rows, pair, [of_step(pair) for of_step in of_panels])
            end(form.chains_of_step - 1)
            return context.get_dummy_value()

        pair_type = types.UniTuple(types.int64, 2)
        given = (pair_type, pair_type, *[types.int64] * 4, pair_type, types.int64, types.int64)
        return types.void(*given), generate

    return multiply


def _ask_for(builder: Any, address: Any, num_lines: int) -> None:
    """Prefetch cache lines; the address need not be valid."""
    kind = INT8.as_pointer()
    hint_type = ir.FunctionType(ir.VoidType(), [kind, INT32, INT32, INT32])
    hint = builder.module.declare_intrinsic("llvm.prefetch", [kind], hint_type)
    for line in range(num_lines):
        place = address_of(builder, address, _BYTES_AHEAD + line * LINE, INT8)
        builder.call(hint, [place, INT32(0), INT32(3), INT32(1)])  # read, to L1, data


def multiply_fma(num_rows: int, *, is_shifted: bool) -> Any:
    """Return an intrinsic that adds products of unpacked code values, of some chains, to totals.

    The totals of the rows stay in registers.
    """

    @intrinsic
    def multiply(
        typing_context: Any,
        chunk: Any,
        num_chains: Any,
        num_pairs: Any,
        inputs: Any,
        input_sums: Any,
        strides: Any,
        numbers: Any,
        totals: Any,
    ) -> Any:
        """chunk: [num_chains, num_pairs, 32 outputs] words of two bfloat16; numbers: of each chain;
        all else as in `multiply_pairs`."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            chunk, num_chains, num_pairs, inputs, input_sums, strides, numbers = arguments[:7]
            stride, sums_stride = (builder.extract_value(strides, i) for i in (0, 1))
            chains = _Chains(builder, 1, num_rows, arguments[7], is_shifted)
            write = chains.hold_totals()
            with cgutils.for_range(builder, num_chains, intp=INT64) as outer:
                chains.begin()
                begun = builder.mul(outer.index, num_pairs)
                with cgutils.for_range(builder, num_pairs, intp=INT64) as loop:
                    pair = builder.add(begun, loop.index)
                    here = builder.add(chunk, builder.mul(pair, INT64(HALVES * LINE)))
                    found = [load_from(builder, here, half * LINE, PAIRS) for half in range(HALVES)]
                    x = builder.add(inputs, builder.mul(pair, INT64(4)))
                    chains.add(chains.rows_at(x, stride), 0, [found])
                chains.end(
                    builder.add(numbers, builder.mul(outer.index, INT64(NUMBER_BYTES))),
                    builder.add(input_sums, builder.mul(outer.index, INT64(4))),
                    sums_stride,
                )
            write()
            return context.get_dummy_value()

        pair_type = types.UniTuple(types.int64, 2)
        given = (*[types.int64] * 5, pair_type, types.int64, types.int64)
        return types.void(*given), generate

    return multiply


PAIRS_OF_STEP = 16  # of inputs
ABOVE = {5: 1, 6: 2}
TABLE_BYTES = 256

_LANES = 2 * NUM_LANES
_BYTES, _CODES = ir.VectorType(INT8, LINE), ir.VectorType(INT16, _LANES)
_SIGNS = 0x80
# Where two registers of bytes become two of words, lane by lane of 128 bits.
_LOW_BYTES = [16 * lane + i + other for lane in range(4) for i in range(8) for other in (0, LINE)]
_HIGH_BYTES = [place + 8 for place in _LOW_BYTES]


def address_of(builder: Any, address: Any, num_bytes: int, kind: Any) -> Any:
    """Return a pointer to an address plus `num_bytes`."""
    place = builder.add(address, address.type(num_bytes))
    return builder.inttoptr(place, kind.as_pointer())


def load_from(builder: Any, address: Any, num_bytes: int, kind: Any) -> Any:
    """Load a value from an unaligned pointer."""
    return builder.load(address_of(builder, address, num_bytes, kind), align=1)


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call the LLVM intrinsic `llvm.<name>`."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}")
    return builder.call(function, arguments)


def _all(value: int) -> Any:
    return ir.Constant(_CODES, [value & 0xFFFF] * _LANES)


def _moved(builder: Any, words: Any, by: int) -> Any:
    """Return words shifted to the left, or to the right if negative."""
    if by == 0:
        return words
    return builder.lshr(words, _all(-by)) if by < 0 else builder.shl(words, _all(by))


def _picked(builder: Any, one: Any, other: Any, lanes: Sequence[int]) -> Any:
    mask = ir.Constant(ir.VectorType(INT32, len(lanes)), lanes)
    return builder.shuffle_vector(one, other, mask)


class CodeNumbers:
    """Looks up code values, two inputs of 16 outputs a register."""

    def __init__(self, builder: Any, form: PairForm, tables: Any) -> None:
        self._builder, self._form = builder, form
        kind = _BYTES if form.num_bits == 8 else _CODES
        count = 0 if form.is_converted else {4: 1, 5: 1, 6: 2, 8: 4}[form.num_bits]
        self._tables = [load_from(builder, tables, i * LINE, kind) for i in range(count)]

    def of_step(self, codes: Any, above: Any) -> Callable[[int], list[Any]]:
        """Return the function that looks up both halves of a panel for a pair of the step."""
        kept: dict[tuple[Any, int], Any] = {}

        def line(address: Any, place: int) -> Any:
            if (address, place) not in kept:
                kept[address, place] = load_from(self._builder, address, place * LINE, _CODES)
            return kept[address, place]

        def numbers(pair: int) -> list[Any]:
            if self._form.is_converted:
                return self._converted(codes, pair)
            if self._form.num_bits == 8:
                return self._of_bytes(codes, pair)
            found = []
            for half in range(HALVES):
                word = line(codes, pair // 4 * HALVES + half)
                index = _moved(self._builder, word, -4 * (pair % 4))
                bits = ABOVE.get(self._form.num_bits, 0)
                if bits:
                    upper = line(above, pair * bits // 16 * HALVES + half)
                    moved = _moved(self._builder, upper, 4 - pair * bits % 16)
                    index = self._builder.or_(
                        self._builder.and_(index, _all(15)),
                        self._builder.and_(moved, _all(~15)),
                    )
                found.append(self._builder.bitcast(self._looked_up(index), PAIRS))
            return found

        return numbers

    def _looked_up(self, index: Any) -> Any:
        if len(self._tables) == 1:
            name = "x86.avx512.permvar.hi.512"
            return call(self._builder, name, _CODES, self._tables[0], index)
        name = "x86.avx512.vpermi2var.hi.512"
        return call(self._builder, name, _CODES, self._tables[0], index, self._tables[1])

    def _of_bytes(self, codes: Any, pair: int) -> list[Any]:
        builder = self._builder
        index = load_from(builder, codes, pair * LINE, _BYTES)
        low, high = (
            call(builder, "x86.avx512.vpermi2var.qi.512", _BYTES, one, index, other)
            for one, other in (self._tables[:2], self._tables[2:])
        )
        signs = builder.and_(index, ir.Constant(_BYTES, [_SIGNS] * LINE))
        high = builder.or_(high, signs)
        words = (_picked(builder, low, high, lanes) for lanes in (_LOW_BYTES, _HIGH_BYTES))
        return [builder.bitcast(each, PAIRS) for each in words]

    def _converted(self, codes: Any, pair: int) -> list[Any]:
        builder = self._builder
        found = []
        both = load_from(builder, codes, pair * LINE, _BYTES)
        for half in range(HALVES):
            places = [lane // 8 * 16 + half * 8 + lane % 8 for lane in range(_LANES)]
            parts = (places[:NUM_LANES], places[NUM_LANES:])
            low, high = (
                builder.sitofp(builder.sext(_picked(builder, both, both, part), WORDS), FLOATS)
                for part in parts
            )
            name = "x86.avx512bf16.cvtne2ps2bf16.512"
            found.append(call(builder, name, PAIRS, high, low))
        return found


def unpack_pairs(form: PairForm) -> Any:
    """Return an intrinsic that writes the code values of a step, [16 pairs, 32 outputs] words."""

    @intrinsic
    def unpack(typing_context: Any, codes: Any, above: Any, tables: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            codes, above, tables, target = arguments
            numbers = CodeNumbers(builder, form, tables).of_step(codes, above)
            for pair in range(PAIRS_OF_STEP):
                for half, found in enumerate(numbers(pair)):
                    place = address_of(builder, target, (HALVES * pair + half) * LINE, PAIRS)
                    builder.store(found, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return unpack
