"""Quantized weights in panels, for products in float32 and with int8 inputs, on any processor.

A kernel is compiled for the type of its weight, one for each kind of codes: so only those of a
model are compiled.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import torch
from numba.extending import overload

from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.linears.panel_product import read_chunk
from pagedrun.kernels.cpu.quantized.code_arrays import (
    EIGHT_BITS,
    FIVE_BITS,
    FLOAT8,
    FOUR_BITS,
    PANEL,
    SIX_BITS,
    STEP,
    CodeArrays,
    CodePlaces,
    Layout,
)
from pagedrun.kernels.cpu.quantized.quads import GROUP_BYTES, NUMBER_BYTES, unpack_floats
from pagedrun.kernels.cpu.quantized.unpack import float_at, int8_at, read_numbers, store_at
from pagedrun.kernels.cpu.simd.arrays import aligned_floats
from pagedrun.kernels.cpu.simd.lanes import splat
from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.kernels.reference.quantized import block_sizes

_LANES = 16


class FourBits(CodePlaces):
    """Codes of up to four bits."""


class ShiftedFourBits(CodePlaces):
    """Codes of up to four bits with zero points or minima."""


class FiveBits(CodePlaces):
    """Codes of five bits."""


class ShiftedFiveBits(CodePlaces):
    """Codes of five bits with zero points or minima."""


class SixBits(CodePlaces):
    """Codes of six bits, whose groups may have sixteen inputs."""


class EightBits(CodePlaces):
    """Codes of eight bits."""


class Float8(CodePlaces):
    """Codes that are float8_e4m3fn."""


# Kind of codes, and whether these are shifted.
KINDS: dict[type[CodePlaces], tuple[int, bool]] = {
    FourBits: (FOUR_BITS, False),
    ShiftedFourBits: (FOUR_BITS, True),
    FiveBits: (FIVE_BITS, False),
    ShiftedFiveBits: (FIVE_BITS, True),
    SixBits: (SIX_BITS, False),
    EightBits: (EIGHT_BITS, False),
    Float8: (FLOAT8, False),
}
_TYPES = {kind: codes for codes, kind in KINDS.items()}
_KIND_OF_BITS = {4: FOUR_BITS, 5: FIVE_BITS, 6: SIX_BITS, 8: EIGHT_BITS}


def panel_type(num_bits: int, *, is_float: bool, is_shifted: bool) -> type[CodePlaces]:
    """Return the type of weights with codes of so many bits in memory."""
    return _TYPES[FLOAT8 if is_float else _KIND_OF_BITS[num_bits], is_shifted]


class PanelArrays:
    """Weights of one form, their panels one behind the other: `arrays`, and addresses in `codes`.

    weights: one for each expert, each read once. dtype: of a model, to which exact weights are
    rounded. sum_size: inputs of an integer sum, see `block_sizes`.
    """

    def __init__(
        self, weights: Iterable[PackedWeight], dtype: torch.dtype, num_weights: int = 1
    ) -> None:
        weights = iter(weights)
        first = next(weights)
        held = CodeArrays.of_experts(
            chain([first], weights), num_weights, Layout.QUADS, rounds=dtype is torch.bfloat16
        )
        self.arrays, form = held.arrays, first.form
        panels = panel_type(form.held_bits, is_float=form.is_float, is_shifted=form.has_offsets)
        self.codes = panels(*held.places)
        _, self.sum_size = block_sizes(first)

    def __getstate__(self) -> dict[str, Any]:
        """Return arrays and facts, without addresses."""
        kind = KINDS[type(self.codes)]
        return {
            "arrays": self.arrays,
            "kind": kind,
            "facts": self.codes.facts,
            "sum_size": self.sum_size,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.arrays, self.sum_size = state["arrays"], state["sum_size"]
        kind, is_shifted = state["kind"]
        self.codes = _TYPES[kind, is_shifted](*state["facts"]).at(self.arrays)


@inlined(fastmath=EXACT)
def read_group(weight: Any, panel: Any, group: Any, numbers: Any) -> None:
    """Write scales, codes that mean 0 and minima of a panel's group to an address."""
    read_numbers(weight, weight.scales, weight.factors, panel, group, numbers)
    zeros, minima = numbers + NUMBER_BYTES, numbers + 2 * NUMBER_BYTES
    first = weight.zeros + (panel * weight.num_groups + group) * PANEL
    for i in range(0, PANEL, _LANES):
        zero = splat(np.float32(weight.offset))
        if weight.zeros != 0:
            zero = zero + int8_at(first + i)
        store_at(zeros + 4 * i, zero)
    if weight.minima != 0:
        read_numbers(weight, weight.minima, weight.minimum_factors, panel, group, minima)
    else:
        for i in range(0, PANEL, _LANES):
            store_at(minima + 4 * i, splat(np.float32(0.0)))


@inlined(fastmath=EXACT)
def read_scales(weight: Any, panel: Any, group: Any, numbers: Any) -> None:
    """Write scales of a panel's group to an address, and behind them shifts: minima, or zero points
    times scales."""
    read_numbers(weight, weight.scales, weight.factors, panel, group, numbers)
    shifts = numbers + NUMBER_BYTES
    if weight.minima != 0:
        read_numbers(weight, weight.minima, weight.minimum_factors, panel, group, shifts)
    elif weight.zeros != 0:
        first = weight.zeros + (panel * weight.num_groups + group) * PANEL
        for i in range(0, PANEL, _LANES):
            store_at(shifts + 4 * i, int8_at(first + i) * float_at(numbers + 4 * i))


_PLAIN = {codes: unpack_floats(kind, rounds=False) for codes, (kind, _) in KINDS.items()}
_ROUNDED = {codes: unpack_floats(kind, rounds=True) for codes, (kind, _) in KINDS.items()}


@overload(read_chunk, strict=False)
def _overload_read_chunk(weights: Any, panel: Any, k: Any, num_terms: Any, chunk: Any) -> Any:
    kind = getattr(weights, "instance_class", None)
    if kind not in KINDS:
        return None
    plain, rounded = _PLAIN[kind], _ROUNDED[kind]

    def unpacked(weights: Any, panel: Any, k: Any, num_terms: Any, chunk: Any) -> None:
        memory = aligned_floats(2 * GROUP_BYTES // 4)
        numbers = memory.ctypes.data
        second = numbers + GROUP_BYTES if weights.steps_per_group == 0 else numbers
        first, target = k // STEP, chunk.ctypes.data
        for step in range(first, (k + num_terms + STEP - 1) // STEP):
            if weights.steps_per_group == 0:
                read_group(weights, panel, 2 * step, numbers)
                read_group(weights, panel, 2 * step + 1, second)
            elif step == first or step % weights.steps_per_group == 0:
                read_group(weights, panel, step // weights.steps_per_group, numbers)
            at = panel * weights.num_steps + step
            codes = weights.codes + at * weights.step_bytes
            above = weights.above + at * weights.above_bytes
            if weights.rounds:
                rounded(codes, above, numbers, second, target)
            else:
                plain(codes, above, numbers, second, target)
            target += STEP * NUMBER_BYTES
        memory[0] = np.float32(0.0)  # Numba frees an array after its last use

    return unpacked
