"""Codes of few bits looked up as words of two bfloat16: AVX-512 with its bfloat16.

What a code means, without its scale, is a whole number of up to eight bits or a float8: exact in
bfloat16. So one lookup makes the operand of a product, and scales are for sums.

Lookups of `vpermw` and its kin take the lower bits of an index and leave those above alone, which
saves masks. Codes of eight bits are looked up byte by byte, their sign apart (AVX512-VBMI).

All is said by addresses, int64, as in `pagedrun.kernels.cpu.simd.codes`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedrun.kernels.cpu.simd.block_product import PAIRS
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, WORDS
from pagedrun.kernels.cpu.simd.pointer import INT8, INT16, INT32

PAIRS_OF_STEP = 16  # of inputs
HALVES = 2  # of a panel's 32 outputs, each a register
LINE = 64
ABOVE = {5: 1, 6: 2}
TABLE_BYTES = 256

_LANES = 2 * NUM_LANES
_BYTES, _CODES = ir.VectorType(INT8, LINE), ir.VectorType(INT16, _LANES)
_SIGNS = 0x80
# Where two registers of bytes become two of words, lane by lane of 128 bits.
_LOW_BYTES = [16 * lane + i + other for lane in range(4) for i in range(8) for other in (0, LINE)]
_HIGH_BYTES = [place + 8 for place in _LOW_BYTES]


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
        """How many chains a step has: six bits have groups of sixteen inputs."""
        return 2 if self.num_bits == 6 else 1


def address_of(builder: Any, address: Any, num_bytes: int, kind: Any) -> Any:
    """Return a pointer to what is `num_bytes` behind an address."""
    place = builder.add(address, address.type(num_bytes))
    return builder.inttoptr(place, kind.as_pointer())


def load_from(builder: Any, address: Any, num_bytes: int, kind: Any) -> Any:
    """Return what is there, wherever it begins."""
    return builder.load(address_of(builder, address, num_bytes, kind), align=1)


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call a function of LLVM by its name behind "llvm."."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}")
    return builder.call(function, arguments)


def _all(value: int) -> Any:
    return ir.Constant(_CODES, [value & 0xFFFF] * _LANES)


def _moved(builder: Any, words: Any, by: int) -> Any:
    """Return words shifted to the left, or to the right."""
    if by == 0:
        return words
    return builder.lshr(words, _all(-by)) if by < 0 else builder.shl(words, _all(by))


def _picked(builder: Any, one: Any, other: Any, lanes: Sequence[int]) -> Any:
    mask = ir.Constant(ir.VectorType(INT32, len(lanes)), lanes)
    return builder.shuffle_vector(one, other, mask)


class CodeNumbers:
    """Makes registers of what codes mean, of two inputs of 16 outputs each."""

    def __init__(self, builder: Any, form: PairForm, tables: Any) -> None:
        self._builder, self._form = builder, form
        kind = _BYTES if form.num_bits == 8 else _CODES
        count = 0 if form.is_converted else {4: 1, 5: 1, 6: 2, 8: 4}[form.num_bits]
        self._tables = [load_from(builder, tables, i * LINE, kind) for i in range(count)]

    def of_step(self, codes: Any, above: Any) -> Callable[[int], list[Any]]:
        """Return what gives both halves of a panel for one of the step's pairs."""
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
    """Return an intrinsic that writes what a step's codes mean, [16 pairs, 32 outputs] words."""

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
