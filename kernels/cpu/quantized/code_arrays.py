"""Layouts of quantized codes and scales in memory: for AMX tiles, for pairs and for quads.

For pairs (`pack_pairs`): a register of code values has, for each of sixteen outputs, two adjacent
inputs as halves of a word, the operand of `vdpbf16ps`. It is looked up by 32 indices of 16 bits;
index `2 * i + j` is for input j of output i, and contains codes of several pairs of inputs. A panel
has two such halves of its outputs, one after the other.

For quads (`pack_quads`): a word has four adjacent inputs of an output, one byte each; see `quads`.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple, Self

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import EXACT, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.quantized.pair_intrinsics import HALVES, PAIRS_OF_STEP, TABLE_BYTES
from pagedrun.kernels.cpu.simd.arrays import aligned_empty
from pagedrun.kernels.cpu.simd.lanes import NUM_LANES as OUTPUTS
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

PANEL = 32  # outputs whose codes lie together
STEP = 32  # inputs of a panel whose codes lie together
FOUR_BITS, FIVE_BITS, SIX_BITS, EIGHT_BITS, FLOAT8 = range(5)
FLOAT32, FLOAT16, BFLOAT16, INT8 = range(4)
# Unpacked at a time. Several times as many leave free memory between weights: 5 to 13 percent of
# a model (measured).
_CODES_AT_ONCE = 1 << 20
_WHOLE_ROW = 1 << 30  # inputs of a group that is a whole row
FLOAT8_FACTOR = 256.0  # that their codes are less by where they are taken for float16
_FORMS = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
# Bytes of a panel's step: of the lower four bits, or of whole codes, and of those above.
_STEP_BYTES = {
    FOUR_BITS: (512, 0),
    FIVE_BITS: (512, 128),
    SIX_BITS: (512, 256),
    EIGHT_BITS: (1024, 0),
    FLOAT8: (1024, 0),
}


class Layout(Enum):
    """Layout of codes. BYTE_PAIRS: of pairs, with codes of eight bits as they are, instead of as
    sign and magnitude."""

    TILES = "tiles"
    PAIRS = "pairs"
    BYTE_PAIRS = "byte pairs"
    QUADS = "quads"


NUM_ARRAYS = 7  # of a weight


class CodePlaces(NamedTuple):
    """Addresses and layout of a weight, for kernels; an absent array has address 0.

    Memory is in the order of panels, and of steps or groups within these. codes: `step_bytes` of
    each step, see `_pack_codes`. above: bits above the lower four, `above_bytes`. scales, zeros
    (int8), minima: 32 numbers of each group, one an output; of those with factors one byte each,
    and `factors`, `minimum_factors` have 32 float16 for every `groups_per_factor` groups.

    kind: of the codes; scale_form: of scales and minima, as numbered above. A group has
    `steps_per_group` steps; 0: a step has two. group_size: inputs of a group. offset: added to
    codes in quads, so that they begin at 0. rounds: weights in quads are rounded to bfloat16.
    """

    kind: int
    scale_form: int
    step_bytes: int
    above_bytes: int
    num_steps: int
    steps_per_group: int
    num_groups: int
    groups_per_factor: int
    group_size: int
    offset: int
    rounds: bool
    codes: int = 0
    above: int = 0
    scales: int = 0
    factors: int = 0
    zeros: int = 0
    minima: int = 0
    minimum_factors: int = 0

    @property
    def facts(self) -> tuple[int, ...]:
        """Fields other than addresses."""
        return tuple(self)[:-NUM_ARRAYS]

    def at(self, arrays: Sequence[NDArray[np.uint8]]) -> Self:
        """Return the places with the addresses of arrays, in the order of the last fields."""
        addresses = (0 if each.size == 0 else each.ctypes.data for each in arrays)
        return type(self)._make((*self.facts, *addresses))


class CodeArrays:
    """A weight supported by kernels of a CPU, in `arrays`; `places` has their addresses."""

    def __init__(
        self, weight: PackedWeight, layout: Layout = Layout.TILES, *, rounds: bool = False
    ) -> None:
        weight = weight.by_row()
        kind, scales = _kind(weight), weight.scales
        if kind == FLOAT8:
            factor = FLOAT8_FACTOR if layout is Layout.TILES else 1.0
            scales = GroupScales(scales.to_float32() * factor)
        minima = weight.minima
        num_groups = scales.values.shape[1]
        num_factors = num_groups if scales.factors is None else scales.factors.shape[1]
        num_steps = -(-weight.in_features // STEP)
        self.arrays = [
            *_packed_codes(weight, kind, layout),
            *map(_by_panel, (scales.values, scales.factors, weight.zeros)),
            _by_panel(None if minima is None else minima.values),
            _by_panel(None if minima is None else minima.factors),
        ]
        step_bytes, above_bytes = _STEP_BYTES[kind]
        self.places = CodePlaces(
            kind=kind,
            scale_form=INT8 if scales.factors is not None else _FORMS[scales.values.dtype],
            step_bytes=step_bytes,
            above_bytes=above_bytes,
            num_steps=num_steps,
            steps_per_group=num_steps if num_groups == 1 else weight.group_size // STEP,
            num_groups=num_groups,
            groups_per_factor=num_groups // num_factors,
            group_size=_WHOLE_ROW if num_groups == 1 else weight.group_size,
            offset=0 if kind == FLOAT8 else first_code(weight),
            rounds=rounds,
        ).at(self.arrays)

    @classmethod
    def of_experts(
        cls,
        weights: Iterable[PackedWeight],
        num_experts: int,
        layout: Layout = Layout.TILES,
        *,
        rounds: bool = False,
    ) -> Self:
        """Return the weights of experts, of one form, one behind the other; each is read once.

        With several, each of `arrays` has a row for each expert.
        """
        packed = (cls(weight, layout, rounds=rounds) for weight in weights)
        all_experts = next(packed)
        if num_experts == 1:
            return all_experts
        own = all_experts.arrays
        arrays = [aligned_empty((num_experts, each.size), np.uint8) for each in own]
        for expert, each in enumerate(chain([own], (one.arrays for one in packed))):
            for target, source in zip(arrays, each, strict=True):
                target[expert] = source.reshape(-1)
        all_experts.arrays, all_experts.places = arrays, all_experts.places.at(arrays)
        return all_experts

    def __getstate__(self) -> dict[str, Any]:
        """Return arrays and facts, without addresses."""
        return {"arrays": self.arrays, "facts": self.places.facts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.arrays = state["arrays"]
        self.places = CodePlaces(*state["facts"]).at(self.arrays)


def first_code(weight: PackedWeight) -> int:
    """Return the negated smallest code of a weight."""
    return 0 if weight.minima is not None else 1 << (weight.form.held_bits - 1)


def _packed_codes(
    weight: PackedWeight, kind: int, layout: Layout
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return codes, or their lower four bits, and the bits above."""
    steps = -(-weight.out_features // PANEL), -(-weight.in_features // STEP)
    below, above = (aligned_empty((*steps, size), np.uint8) for size in _STEP_BYTES[kind])
    rows = max(_CODES_AT_ONCE // (PANEL * below.shape[1] * STEP), 1) * PANEL
    for start in range(0, weight.out_features, rows):
        codes = as_array(weight.codes[start : start + rows].contiguous()).view(np.uint8)
        panels = slice(start // PANEL, (start + rows) // PANEL)
        choose_threads(codes.size)
        _pack(codes, weight, kind, layout, below[panels], above[panels])
    return below, above


def _pack(
    source: NDArray[np.uint8],
    weight: PackedWeight,
    kind: int,
    layout: Layout,
    below: NDArray[np.uint8],
    above: NDArray[np.uint8],
) -> None:
    """Copy codes of some rows of a weight to their panels."""
    if layout is Layout.QUADS:
        offset = 0 if kind == FLOAT8 else first_code(weight)
        words = below.view(np.uint32), above.view(np.uint32)
        pack_quads(source, weight.form.held_bits, offset, *words)
    elif layout is not Layout.TILES:
        offset = 0 if kind == FLOAT8 or layout is Layout.BYTE_PAIRS else first_code(weight)
        pack_pairs(source, weight.form.held_bits, offset, below, above)
    elif kind in (EIGHT_BITS, FLOAT8):
        _pack_bytes(source, below)
    else:
        _pack_codes(source, 0 if kind == FOUR_BITS else kind - FOUR_BITS, below, above)


def _kind(weight: PackedWeight) -> int:
    if weight.form.is_float:
        return FLOAT8
    kinds = {4: FOUR_BITS, 5: FIVE_BITS, 6: SIX_BITS, 8: EIGHT_BITS}
    return kinds[weight.form.held_bits]


def _by_panel(numbers: Tensor | None) -> NDArray[np.uint8]:
    """Return numbers [out_features, num_groups] as bytes, contiguous for a group of a panel."""
    if numbers is None:
        return np.empty(0, np.uint8)
    padded = functional.pad(numbers, (0, 0, 0, -len(numbers) % PANEL))
    panels = padded.view(-1, PANEL, numbers.shape[1]).transpose(1, 2).contiguous()
    return panels.view(torch.uint8).numpy().reshape(-1)


@kernel
def _pack_bytes(codes: Any, packed: Any) -> None:
    """Copy codes [out_features, in_features] to blocks of 32 x 32, row-major."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint8(0)
        for i in range(min(PANEL, codes.shape[0] - panel * PANEL)):
            source = codes[panel * PANEL + i]
            for k in range(source.shape[0]):
                packed[panel, k // STEP, i * STEP + k % STEP] = source[k]


@kernel
def _pack_codes(codes: Any, bits_above: Any, packed: Any, above: Any) -> None:
    """Copy codes [out_features, in_features] to steps of 32 x 32.

    packed: eight times 32 words of 16 bits; those of one have the lower four bits of four outputs'
    code of the same input. above: words as these, which have `bits_above` bits of 16 outputs, or 8.
    """
    outputs = 16 // max(bits_above, 1)
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint8(0)
        above[panel] = np.uint8(0)
        for i in range(min(PANEL, codes.shape[0] - panel * PANEL)):
            source = codes[panel * PANEL + i]
            for k in range(source.shape[0]):
                code = np.uint32(source[k])
                place = i // 4 * 64 + k % STEP * 2 + i % 4 // 2
                packed[panel, k // STEP, place] |= np.uint8((code & 15) << (i % 2 * 4))
                if bits_above > 0:
                    bit = i % outputs * bits_above
                    place = i // outputs * 64 + k % STEP * 2 + bit // 8
                    upper = (code >> 4) & ((1 << bits_above) - 1)
                    above[panel, k // STEP, place] |= np.uint8(upper << (bit % 8))


_QUADS = 4  # of a step: four pairs of inputs
_LANES = 2 * OUTPUTS

_EVEN_BYTES, _ONES = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_EACH_BYTE, _TOP_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


def pack_pairs(
    codes: NDArray[np.uint8],
    num_bits: int,
    offset: int,
    below: NDArray[np.uint8],
    above: NDArray[np.uint8],
) -> None:
    """Copy codes [out_features, in_features] to panels of steps.

    num_bits: 4, 5 or 6; 8: `offset` decides, bytes as they are (0) or int8 as sign and magnitude;
    else `offset` is added to codes, which are from 0 on then. below: [num_panels, num_steps,
    bytes], the lower four bits or whole bytes; above: the bits above four. What lies beyond the
    last row and column is any finite number.
    """
    num_columns = below.shape[1] * STEP
    if codes.shape[1] != num_columns:
        codes = np.pad(codes, ((0, 0), (0, num_columns - codes.shape[1])))
    quads = codes.view(np.uint64)
    if num_bits == 8:
        _pack_byte_pairs(quads, offset != 0, below.view(np.uint16))
    else:
        added = np.uint64(offset) * _ONES
        _pack_code_pairs(quads, added, num_bits - 4, below.view(np.uint16), above.view(np.uint16))


def tables_of(num_bits: int, offset: int, *, is_float: bool) -> NDArray[np.uint8]:
    """Return the lookup table of codes, `TABLE_BYTES`: bfloat16 for each code, from 0 on.

    With eight bits, the lower bytes of 128 magnitudes, then their upper bytes.
    """
    if num_bits < 8:
        values = np.arange(1 << num_bits, dtype=np.float32) - np.float32(offset)
        words = np.resize(_upper_halves(values), TABLE_BYTES // 2)
        return words.view(np.uint8).copy()
    magnitudes = np.arange(128)
    values = _of_float8(magnitudes) if is_float else magnitudes.astype(np.float32)
    words = _upper_halves(values)
    return np.concatenate([words & 0xFF, words >> 8]).astype(np.uint8)


def _upper_halves(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bfloat16 bits of numbers that are exact in bfloat16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _of_float8(codes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the values of the magnitudes of float8_e4m3fn; NaN, absent in weights, is a number."""
    exponents, digits = codes >> 3, codes & 7
    normal = (8 + digits) * 2.0 ** (exponents - 10)
    return np.where(exponents > 0, normal, digits * 2.0**-9).astype(np.float32)


@kernel
def _pack_byte_pairs(quads: Any, is_signed: Any, packed: Any) -> None:
    """Pack a pair of codes to a word of 16 bits; halves alternate by eight bytes.

    quads: [out_features, in_features / 8] uint64.
    """
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint16(0)
        rows = quads[panel * PANEL : min(quads.shape[0], (panel + 1) * PANEL)]
        for step in range(packed.shape[1]):  # one step's memory stays in the cache
            of_step = packed[panel, step]
            for i in range(rows.shape[0]):
                output = i % OUTPUTS
                place = output // 4 * 8 + i // OUTPUTS * 4 + output % 4
                for quad in range(_QUADS):
                    eight = rows[i, step * _QUADS + quad]
                    if is_signed:
                        eight = _signs_and_magnitudes(eight)
                    for pair in range(4):
                        two = (eight >> np.uint64(16 * pair)) & np.uint64(0xFFFF)
                        of_step[(4 * quad + pair) * 2 * OUTPUTS + place] = np.uint16(two)


@kernel
def _pack_code_pairs(quads: Any, added: Any, bits_above: Any, packed: Any, above: Any) -> None:
    """Pack the lower four bits of four pairs to a word, the others of 16 or 8 to one of `above`."""
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint16(0)
        above[panel] = np.uint16(0)
        for i in range(min(PANEL, quads.shape[0] - panel * PANEL)):
            source = quads[panel * PANEL + i]
            place = i // OUTPUTS * _LANES + i % OUTPUTS * 2
            for step in range(packed.shape[1]):
                of_step, upper = packed[panel, step], above[panel, step]
                for quad in range(_QUADS):
                    eight = source[step * _QUADS + quad]
                    for j in range(2):
                        codes = _every_other(eight, j, added)
                        here = quad * HALVES * _LANES + place + j
                        of_step[here] = np.uint16(_squeezed(codes, 4))
                        if bits_above > 0:
                            more = _squeezed(codes >> np.uint64(4), bits_above)
                            bit = 4 * quad * bits_above
                            here = bit // PAIRS_OF_STEP * HALVES * _LANES + place + j
                            more <<= np.uint64(bit % PAIRS_OF_STEP)
                            upper[here] |= np.uint16(more)


@inlined(fastmath=EXACT)
def _signs_and_magnitudes(eight: Any) -> Any:
    """Return int8 (without -128) as a sign above seven bits of magnitude."""
    signs = eight & _TOP_BITS
    ones = (signs >> np.uint64(7)) & _EACH_BYTE
    return ((eight ^ (ones * np.uint64(0xFF))) + ones) | signs


@inlined(fastmath=EXACT)
def _every_other(eight: Any, j: Any, added: Any) -> Any:
    """Return every other of eight codes, 16 bits each."""
    codes = (eight >> np.uint64(8 * j)) & _EVEN_BYTES
    return (codes + added) & _EVEN_BYTES


@inlined(fastmath=EXACT)
def _squeezed(codes: Any, bits: Any) -> Any:
    """Return the lower bits of four codes, concatenated."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    codes = codes & (mask * _ONES)
    codes = codes | (codes >> np.uint64(16 - bits))
    pair = (np.uint64(1) << np.uint64(2 * bits)) - np.uint64(1)
    return (codes & pair) | (((codes >> np.uint64(32)) & pair) << np.uint64(2 * bits))


QUADS = 8  # of a step
_STEPS_AT_ONCE = 32


@kernel
def pack_quads(codes: Any, num_bits: Any, offset: Any, packed: Any, above: Any) -> None:
    """Copy codes, bytes [out_features, in_features], to steps; `offset` is added to each.

    num_bits: 4, 5, 6 or 8. packed: [num_panels, num_steps, words]; with eight bits quads in order.
    above: with five bits bit q of a byte belongs to quad q; with six bits, two bits of a byte
    belong to each quad of four. Zeros follow the last row and column.
    """
    mask, flip = np.uint32(0x01010101 * ((1 << num_bits) - 1)), np.uint32(0x01010101 * offset)
    num_steps = packed.shape[1]
    for panel in numba.prange(packed.shape[0]):
        num_columns = min(PANEL, codes.shape[0] - panel * PANEL)
        if num_columns < PANEL:
            packed[panel] = np.uint32(0)
        above[panel] = np.uint32(0)
        padded = np.zeros(_STEPS_AT_ONCE * STEP, np.uint8)
        for step in range(0, num_steps, _STEPS_AT_ONCE):  # whose memory stays in the cache
            end = min(step + _STEPS_AT_ONCE, num_steps)
            quads = padded[: (end - step) * STEP].view(np.uint32)
            places, upper = packed[panel, step:end].reshape(-1), above[panel, step:end]
            for column in range(num_columns):
                source = codes[panel * PANEL + column, step * STEP : end * STEP]
                for k in range(source.shape[0]):
                    padded[k] = source[k]
                for k in range(source.shape[0], (end - step) * STEP):
                    padded[k] = 0
                # Two's complement plus half of its range is the same with its sign flipped.
                for q in range(quads.shape[0]):
                    quads[q] = (quads[q] & mask) ^ flip
                _place_column(quads, num_bits, places, column)
                if num_bits in (5, 6):
                    _place_upper_bits(quads, num_bits, upper, column)


@inlined()
def _place_column(quads: Any, num_bits: Any, packed: Any, column: Any) -> None:
    """Write the quads of a column, or the lower four bits of two in one word."""
    if num_bits == 8:
        for q in range(quads.shape[0]):
            packed[q * PANEL + column] = quads[q]
        return
    low, four = np.uint32(0x0F0F0F0F), np.uint32(4)
    for step in range(quads.shape[0] // QUADS):
        for j in range(QUADS // 2):
            one, other = quads[step * QUADS + j] & low, quads[step * QUADS + j + QUADS // 2] & low
            place = (step * QUADS // 2 + j) * PANEL + column
            packed[place] = np.uint32(one | np.uint32(other << four))


@inlined()
def _place_upper_bits(quads: Any, num_bits: Any, above: Any, column: Any) -> None:
    for step in range(above.shape[0]):
        upper = above[step]
        for q in range(QUADS):
            high = np.uint32((quads[step * QUADS + q] >> np.uint32(4)) & np.uint32(0x0F0F0F0F))
            if num_bits == 5:
                upper[column] |= np.uint32(high << np.uint32(q))
            else:
                upper[q // 4 * PANEL + column] |= np.uint32(high << np.uint32(q % 4 * 2))
