"""Weights whose codes lie in pairs, step by step: what kernels do before, and while, they multiply.

What a kernel is compiled for follows from the type of what it is given, one for each way in which
codes become numbers: so only those are compiled that a model has.
"""

from typing import Any

import numpy as np
from numba.extending import overload

from pagedrun.kernels.cpu.jit import EXACT, part
from pagedrun.kernels.cpu.packed.code_arrays import (
    FLOAT32,
    INT8,
    PANEL,
    CodeArrays,
    CodePlaces,
    first_code,
)
from pagedrun.kernels.cpu.packed.unpack import read_numbers
from pagedrun.kernels.cpu.simd.code_pairs import (
    CONSTANT_BYTES,
    PairForm,
    multiply_pairs,
    unpack_pairs,
    write_constants,
)
from pagedrun.kernels.cpu.simd.codes import int8_at, store_at
from pagedrun.kernels.cpu.simd.lanes import splat
from pagedrun.kernels.packed_weight import PackedWeight

FEW_ROWS = 4
_LANES = 16
# Bytes behind the beginning of what kernels have for a group.
_ZEROS, _MINIMA, _FIRST = 128, 256, 384
_SECOND = _FIRST + CONSTANT_BYTES
GROUP_BYTES = _SECOND + CONSTANT_BYTES


class FourBits(CodePlaces):
    """Products of codes with scales may be rounded, or minima are subtracted."""


class ExactFourBits(CodePlaces):
    """Scales have few digits, so that products with them are exact."""


class FiveBits(CodePlaces):
    """As `FourBits`."""


class ExactFiveBits(CodePlaces):
    """As `ExactFourBits`."""


class SixBits(CodePlaces):
    """As `FourBits`."""


class EightBits(CodePlaces):
    """As `FourBits`."""


class ExactEightBits(CodePlaces):
    """As `ExactFourBits`."""


class Float8(CodePlaces):
    """Numbers in themselves."""


_FORMS = {
    FourBits: PairForm(4, is_fused=False),
    ExactFourBits: PairForm(4, is_fused=True),
    FiveBits: PairForm(5, is_fused=False),
    ExactFiveBits: PairForm(5, is_fused=True),
    SixBits: PairForm(6, is_fused=False),
    EightBits: PairForm(8, is_fused=False),
    ExactEightBits: PairForm(8, is_fused=True),
    Float8: PairForm(0, is_fused=False),
}
_OF_FORM = {form: places for places, form in _FORMS.items()}
_UNPACKING = {places: unpack_pairs(form) for places, form in _FORMS.items()}
_MULTIPLYING = {
    places: {rows: multiply_pairs(form, rows) for rows in (1, FEW_ROWS)}
    for places, form in _FORMS.items()
}
_WRITING = {places: write_constants(form) for places, form in _FORMS.items()}


class PairArrays:
    """Holds a weight in pairs of codes: `arrays`, and `places` of them for kernels.

    first_code: what the least code is below 0.
    """

    def __init__(self, weight: PackedWeight) -> None:
        held = CodeArrays(weight, in_pairs=True)
        self.arrays = held.arrays
        self.first_code = np.float32(first_code(weight))
        form = weight.form
        num_bits = 0 if form.is_float else form.held_bits
        may_round = held.places.scale_form in (FLOAT32, INT8) or form.has_minima
        is_fused = num_bits in (4, 5, 8) and not may_round
        self.places = _OF_FORM[PairForm(num_bits, is_fused)](*held.places)


@part(fastmath=EXACT)
def begin_memory(memory: Any, first_code: Any) -> None:
    """Fill memory of `GROUP_BYTES`, float32, for weights that have no zero points or minima."""
    for i in range(PANEL):
        memory[_ZEROS // 4 + i] = first_code
        memory[_MINIMA // 4 + i] = np.float32(0.0)


@part(fastmath=EXACT)
def begin_group(weight: Any, panel: Any, step: Any, first_code: Any, memory: Any) -> Any:
    """Write the constants of the group that begins at a step to an address; return how many steps
    follow in it."""
    if weight.steps_per_group == 0:
        for half in range(2):
            read_numbers(weight, weight.scales, weight.factors, panel, 2 * step + half, memory)
            _write(
                weight,
                memory,
                memory + _ZEROS,
                memory + _MINIMA,
                memory + _FIRST + half * CONSTANT_BYTES,
            )
        return 0
    group = step // weight.steps_per_group
    read_numbers(weight, weight.scales, weight.factors, panel, group, memory)
    if weight.zeros != 0:
        first = weight.zeros + (panel * weight.num_groups + group) * PANEL
        for i in range(0, PANEL, _LANES):
            store_at(memory + _ZEROS + 4 * i, int8_at(first + i) + splat(first_code))
    if weight.minima != 0:
        read_numbers(weight, weight.minima, weight.minimum_factors, panel, group, memory + _MINIMA)
    _write(weight, memory, memory + _ZEROS, memory + _MINIMA, memory + _FIRST)
    return weight.steps_per_group - 1


@part()
def constants(weight: Any, memory: Any) -> Any:
    """Return the addresses of what both halves of a step are multiplied with."""
    second = memory + _SECOND if weight.steps_per_group == 0 else memory + _FIRST
    return memory + _FIRST, second


def _write(weight: Any, scales: Any, zeros: Any, minima: Any, target: Any) -> None:
    raise NotImplementedError("only compiled code calls this")


def unpack_step(weight: Any, codes: Any, above: Any, first: Any, second: Any, target: Any) -> None:
    """Inside kernels: write a step's weights to an address, [16 pairs, 32 outputs] words."""
    raise NotImplementedError("only compiled code calls this")


def multiply_step(
    weight: Any, codes: Any, above: Any, first: Any, second: Any, x: Any, stride: Any, sums: Any
) -> None:
    """Inside kernels: add a step's products with one row, see `multiply_pairs`."""
    raise NotImplementedError("only compiled code calls this")


def multiply_few(
    weight: Any, codes: Any, above: Any, first: Any, second: Any, x: Any, stride: Any, sums: Any
) -> None:
    """Inside kernels: add a step's products with `FEW_ROWS` rows."""
    raise NotImplementedError("only compiled code calls this")


@overload(_write, strict=False)
def _overload_write(weight: Any, scales: Any, zeros: Any, minima: Any, target: Any) -> Any:
    write = _WRITING[weight.instance_class]
    return lambda weight, scales, zeros, minima, target: write(scales, zeros, minima, target)


@overload(unpack_step, strict=False)
def _overload_unpack(
    weight: Any, codes: Any, above: Any, first: Any, second: Any, target: Any
) -> Any:
    unpack = _UNPACKING[weight.instance_class]
    return lambda weight, codes, above, first, second, target: unpack(
        codes, above, first, second, target
    )


@overload(multiply_step, strict=False)
def _overload_multiply(
    weight: Any, codes: Any, above: Any, first: Any, second: Any, x: Any, stride: Any, sums: Any
) -> Any:
    multiply = _MULTIPLYING[weight.instance_class][1]
    return lambda weight, codes, above, first, second, x, stride, sums: multiply(
        codes, above, first, second, x, stride, sums
    )


@overload(multiply_few, strict=False)
def _overload_few(
    weight: Any, codes: Any, above: Any, first: Any, second: Any, x: Any, stride: Any, sums: Any
) -> Any:
    multiply = _MULTIPLYING[weight.instance_class][FEW_ROWS]
    return lambda weight, codes, above, first, second, x, stride, sums: multiply(
        codes, above, first, second, x, stride, sums
    )
