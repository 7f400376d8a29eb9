"""Weights whose codes lie in pairs, chain by chain: what kernels do before, and while, they
multiply.

What a kernel is compiled for follows from the type of what it is given, one for each way in which
codes become numbers: so only those are compiled that a model has.
"""

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import EXACT, part
from pagedrun.kernels.cpu.packed.code_arrays import PANEL, CodeArrays, CodePlaces, first_code
from pagedrun.kernels.cpu.packed.pair_layout import tables_of
from pagedrun.kernels.cpu.packed.unpack import read_numbers
from pagedrun.kernels.cpu.simd.code_pairs import PairForm, unpack_pairs
from pagedrun.kernels.cpu.simd.codes import float_at, int8_at, store_at
from pagedrun.kernels.cpu.simd.lanes import splat
from pagedrun.kernels.cpu.simd.pair_chains import (
    NUMBER_BYTES,
    PANEL_BYTES,
    multiply_chains,
    multiply_pairs,
)
from pagedrun.kernels.packed_weight import PackedWeight

ROWS, FEWER_ROWS = 6, 4  # of a block
FEW_ROWS = 4
PANELS_OF_ONE_ROW = 2
CHAIN_STEPS = 4  # at most
_LANES = 16


class FourBits(CodePlaces):
    """Codes without zero points or minima."""


class ShiftedFourBits(CodePlaces):
    """Codes with zero points or minima."""


class FiveBits(CodePlaces):
    """As `FourBits`."""


class ShiftedFiveBits(CodePlaces):
    """As `ShiftedFourBits`."""


class SixBits(CodePlaces):
    """Codes whose groups may have sixteen inputs."""


class EightBits(CodePlaces):
    """Signs and magnitudes, or floats."""


class ConvertedEightBits(CodePlaces):
    """Codes of which one is -128."""


_FORMS = {
    FourBits: PairForm(4),
    ShiftedFourBits: PairForm(4, is_shifted=True),
    FiveBits: PairForm(5),
    ShiftedFiveBits: PairForm(5, is_shifted=True),
    SixBits: PairForm(6),
    EightBits: PairForm(8),
    ConvertedEightBits: PairForm(8, is_converted=True),
}
_OF_FORM = {form: places for places, form in _FORMS.items()}
_UNPACKING = {places: unpack_pairs(form) for places, form in _FORMS.items()}
_ONE_ROW = {places: multiply_pairs(form, PANELS_OF_ONE_ROW, 1) for places, form in _FORMS.items()}
_FEW = {places: multiply_pairs(form, 1, FEW_ROWS) for places, form in _FORMS.items()}
_MANY, _FEWER = (
    {each: multiply_chains(num_rows, is_shifted=each) for each in (False, True)}
    for num_rows in (ROWS, FEWER_ROWS)
)


class PairArrays:
    """Holds a weight in pairs of codes: `arrays`, and for kernels `places` of them, `tables` that
    codes are looked up in, and how many steps a chain has."""

    def __init__(self, weight: PackedWeight) -> None:
        form = weight.form
        num_bits = form.held_bits
        converted = num_bits == 8 and not form.is_float and int(weight.codes.numpy().min()) == -128
        held = CodeArrays(weight, in_pairs=True, as_bytes=converted)
        self.arrays = held.arrays
        self.tables: NDArray[np.uint8] = tables_of(
            num_bits, first_code(weight), is_float=form.is_float
        )
        is_shifted = form.has_zeros or form.has_minima
        self.places = _OF_FORM[PairForm(num_bits, is_shifted, converted)](*held.places)
        steps = held.places.steps_per_group
        is_whole = held.places.num_groups == 1
        sizes = (each for each in (CHAIN_STEPS, 2, 1) if is_whole or steps % each == 0)
        self.chain_steps = 1 if num_bits == 6 else next(sizes)


@part(fastmath=EXACT)
def begin_chain(weight: Any, panel: Any, step: Any, numbers: Any) -> None:
    """Write what the chain that begins at a step is multiplied with to an address."""
    if weight.steps_per_group == 0:
        for half in range(2):
            target = numbers + half * NUMBER_BYTES
            read_numbers(weight, weight.scales, weight.factors, panel, 2 * step + half, target)
        return
    group = step // weight.steps_per_group
    read_numbers(weight, weight.scales, weight.factors, panel, group, numbers)
    shifts = numbers + PANEL_BYTES
    if weight.minima != 0:
        read_numbers(weight, weight.minima, weight.minimum_factors, panel, group, shifts)
        for i in range(0, 4 * PANEL, 4 * _LANES):
            store_at(shifts + i, splat(np.float32(0.0)) - float_at(shifts + i))
    if weight.zeros != 0:
        first = weight.zeros + (panel * weight.num_groups + group) * PANEL
        for i in range(0, PANEL, _LANES):
            shift = int8_at(first + i) * float_at(numbers + 4 * i)
            store_at(shifts + 4 * i, splat(np.float32(0.0)) - shift)
    if chains_of_step(weight) == 2:
        for i in range(0, 4 * PANEL, 4 * _LANES):
            store_at(numbers + NUMBER_BYTES + i, float_at(numbers + i))


def has_shifts(weight: Any) -> bool:
    """Inside kernels: return whether there are zero points or minima."""
    raise NotImplementedError("only compiled code calls this")


def chains_of_step(weight: Any) -> int:
    """Inside kernels: return how many chains a step has."""
    raise NotImplementedError("only compiled code calls this")


def unpack_step(weight: Any, codes: Any, above: Any, tables: Any, target: Any) -> None:
    """Inside kernels: write a step's numbers to an address, see `unpack_pairs`."""
    raise NotImplementedError("only compiled code calls this")


def multiply_one(weight: Any, codes: Any, steps: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: add a chain's products with one row and two panels.

    codes: places, distances, and the address of tables; x: addresses of inputs and of sums of
    these, and strides of both. See `multiply_pairs`.
    """
    raise NotImplementedError("only compiled code calls this")


def multiply_few(weight: Any, codes: Any, steps: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: as `multiply_one`, for `FEW_ROWS` rows and one panel."""
    raise NotImplementedError("only compiled code calls this")


def multiply_many(weight: Any, chunk: Any, sizes: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: add products of chains with `ROWS` rows, of numbers that are unpacked.

    sizes: the number of chains, and of pairs of each. x: as in `multiply_one`.
    """
    raise NotImplementedError("only compiled code calls this")


def multiply_fewer(weight: Any, chunk: Any, sizes: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: as `multiply_many` for `FEWER_ROWS` rows."""
    raise NotImplementedError("only compiled code calls this")


@overload(has_shifts, strict=False)
def _overload_has_shifts(weight: Any) -> Any:
    is_shifted = _FORMS[weight.instance_class].is_shifted
    return lambda weight: is_shifted


@overload(chains_of_step, strict=False)
def _overload_chains(weight: Any) -> Any:
    count = _FORMS[weight.instance_class].chains_of_step
    return lambda weight: count


@overload(unpack_step, strict=False)
def _overload_unpack(weight: Any, codes: Any, above: Any, tables: Any, target: Any) -> Any:
    unpack = _UNPACKING[weight.instance_class]
    return lambda weight, codes, above, tables, target: unpack(codes, above, tables, target)


def _multiplying(intrinsics: Any) -> Any:
    def choose(weight: Any, codes: Any, steps: Any, x: Any, numbers: Any, totals: Any) -> Any:
        multiply = intrinsics[weight.instance_class]
        return lambda weight, codes, steps, x, numbers, totals: multiply(
            codes[0], codes[1], codes[2], steps, x[0], x[1], x[2], numbers, totals
        )

    return choose


overload(multiply_one, strict=False)(_multiplying(_ONE_ROW))
overload(multiply_few, strict=False)(_multiplying(_FEW))


def _multiplying_chains(intrinsics: Any) -> Any:
    def choose(weight: Any, chunk: Any, sizes: Any, x: Any, numbers: Any, totals: Any) -> Any:
        multiply = intrinsics[_FORMS[weight.instance_class].is_shifted]
        return lambda weight, chunk, sizes, x, numbers, totals: multiply(
            chunk, sizes[0], sizes[1], x[0], x[1], x[2], numbers, totals
        )

    return choose


overload(multiply_many, strict=False)(_multiplying_chains(_MANY))
overload(multiply_fewer, strict=False)(_multiplying_chains(_FEWER))
