"""Products of bfloat16 with quantized weights by `vdpbf16ps`, sums in float32.

A code without its scale is exact in bfloat16, so codes are multiplied unscaled, and scales multiply
sums. Each output adds up chains in ascending order; a chain covers the pairs of at most 128
neighboring inputs of one group, starts at 0, and is multiplied by the group's scale before it is
added. This does not depend on the number of rows.

Up to `FEW_ROWS` rows are multiplied with code values in registers, one row with two panels at once,
to hide the latency of products; with more, eight steps of code values stay in the cache for all
rows.

A kernel is compiled for the type of its weight, one for each form of codes: so only the forms of a
model are compiled.
"""

from dataclasses import astuple
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import EXACT, inlined, kernel
from pagedrun.kernels.cpu.linears.epilogue import write_block
from pagedrun.kernels.cpu.linears.panel_product import cut_panels, next_panels
from pagedrun.kernels.cpu.quantized.code_arrays import (
    PANEL,
    STEP,
    CodeArrays,
    CodePlaces,
    Layout,
    first_code,
    tables_of,
)
from pagedrun.kernels.cpu.quantized.pair_intrinsics import (
    MOST_CHAINS,
    NUMBER_BYTES,
    PANEL_BYTES,
    PairForm,
    multiply_fma,
    multiply_pairs,
    unpack_pairs,
)
from pagedrun.kernels.cpu.quantized.unpack import float_at, int8_at, read_numbers, store_at
from pagedrun.kernels.cpu.simd.arrays import aligned_floats, prefetch_at
from pagedrun.kernels.cpu.simd.lanes import splat
from pagedrun.kernels.quantized_weight import PackedWeight

CHUNK_STEPS = 8
ROWS_AT_ONCE = 512  # their sums stay in L2
PANELS_OF_TASK = 4
_BYTES_AHEAD = 4096  # prefetch distance in a weight's memory
_STEP_BYTES = 2 * PANEL * STEP  # of numbers
_ROW_BYTES = 4 * PANEL  # of sums, and of numbers of a pair of inputs
_PAIR_BYTES = 4  # of inputs


class Chains(NamedTuple):
    """Chains of a weight. steps: most steps of a chain. tables: lookup table of codes, bytes."""

    steps: Any
    tables: Any


@kernel
def multiply_rows(num_threads: Any, x: Any, weight: Any, chains: Any, bias: Any, out: Any) -> None:
    """Multiply rows with a weight.

    x: bits of bfloat16, [num_rows, 32 * num_steps], with rows of zeros up to a multiple of what is
    multiplied at once. weight: `PairArrays.places`. chains: `Chains`. bias: float32, one for each
    output of all panels, or empty. out: [num_rows, out_features], bits of bfloat16.
    """
    num_panels = (out.shape[1] + PANEL - 1) // PANEL
    num_chains = (weight.num_steps + chains.steps - 1) // chains.steps
    input_sums = np.empty((x.shape[0] if has_shifts(weight) else 1, num_chains), np.float32)
    if has_shifts(weight):
        if x.shape[0] <= FEW_ROWS:
            for row in range(x.shape[0]):
                _add_inputs(x[row], chains.steps * STEP, input_sums[row])
        else:
            for row in numba.prange(x.shape[0]):
                _add_inputs(x[row], chains.steps * STEP, input_sums[row])
    rows_at_once = min(ROWS_AT_ONCE, x.shape[0])
    cut = cut_panels(num_threads, 1, num_panels, PANELS_OF_TASK)
    for thread in numba.prange(num_threads):
        chunk = aligned_floats(CHUNK_STEPS * _STEP_BYTES // 4)
        numbers = aligned_floats(CHUNK_STEPS * MOST_CHAINS * NUMBER_BYTES // 4)
        totals = aligned_floats(max(PANELS_OF_ONE_ROW, rows_at_once) * PANEL)
        while True:
            _weight, start, end = next_panels(cut, thread)
            if start == end:
                break
            if x.shape[0] == 1:
                for panel in range(start, end, PANELS_OF_ONE_ROW):
                    next_panel = min(1, end - 1 - panel)
                    _few_rows(x, weight, chains, panel, next_panel, input_sums, numbers, totals)
                    for i in range(min(PANELS_OF_ONE_ROW, end - panel)):
                        write_block(totals, i * PANEL, 1, bias, 0, (panel + i) * PANEL, out)
                continue
            for panel in range(start, end):
                if x.shape[0] <= FEW_ROWS:
                    _few_rows(x, weight, chains, panel, 0, input_sums, numbers, totals)
                    write_block(totals, 0, x.shape[0], bias, 0, panel * PANEL, out)
                    continue
                for row in range(0, x.shape[0], rows_at_once):
                    last = min(x.shape[0], row + rows_at_once)
                    rows = x[row:last], input_sums[min(row, input_sums.shape[0] - 1) :]
                    _many_rows(rows, weight, chains, panel, chunk, numbers, totals)
                    write_block(totals, 0, last - row, bias, row, panel * PANEL, out)
        # Numba frees an array after its last use, and does not track addresses.
        chunk[0], numbers[0] = np.float32(0.0), np.float32(0.0)
    input_sums[0, 0] = np.float32(0.0)


@inlined()
def _add_inputs(x: Any, size: Any, sums: Any) -> None:
    """Write the sums of each `size` inputs, in ascending order."""
    for chain in range(sums.shape[0]):
        total = np.float32(0.0)
        for number in x[chain * size : (chain + 1) * size]:
            total += to_float32(number)
        sums[chain] = total


@inlined()
def _few_rows(
    x: Any,
    weight: Any,
    chains: Any,
    panel: Any,
    next_panel: Any,
    input_sums: Any,
    numbers: Any,
    totals: Any,
) -> None:
    """Compute the sums of a panel; with one row also those of the panel `next_panel` further."""
    num_steps, step_bytes, above_bytes = weight.num_steps, weight.step_bytes, weight.above_bytes
    num_panels = PANELS_OF_ONE_ROW if x.shape[0] == 1 else 1
    codes = np.int64(weight.codes + panel * num_steps * step_bytes)
    above = np.int64(weight.above + panel * num_steps * above_bytes)
    distances = (
        np.int64(next_panel * num_steps * step_bytes),
        np.int64(next_panel * num_steps * above_bytes),
    )
    tables = np.int64(chains.tables.ctypes.data)
    strides = (np.int64(2 * x.shape[1]), np.int64(4 * input_sums.shape[1]))
    inputs, sums = np.int64(x.ctypes.data), np.int64(input_sums.ctypes.data)
    first, target = np.int64(numbers.ctypes.data), np.int64(totals.ctypes.data)
    totals[: max(num_panels, x.shape[0]) * PANEL] = np.float32(0.0)
    left = 0
    for begin in range(0, num_steps, chains.steps):
        steps = min(chains.steps, num_steps - begin)
        if left > 0:
            left -= steps
        else:
            left = weight.steps_per_group - steps
            begin_chain(weight, panel, begin, first)
            if num_panels > 1:
                second = first + MOST_CHAINS * NUMBER_BYTES
                begin_chain(weight, panel + next_panel, begin, second)
        of_weight = (codes, above), distances, tables
        if x.shape[0] == 1:
            multiply_one(weight, of_weight, steps, (inputs, sums, strides), first, target)
        else:
            multiply_few(weight, of_weight, steps, (inputs, sums, strides), first, target)
        codes += steps * step_bytes
        above += steps * above_bytes
        inputs += 2 * steps * STEP
        sums += 4


@inlined()
def _many_rows(
    rows: Any, weight: Any, chains: Any, panel: Any, chunk: Any, numbers: Any, totals: Any
) -> None:
    """Compute the sums of a panel with rows, a multiple of `ROWS`, and the sums of these."""
    x, input_sums = rows
    num_steps, step_bytes, above_bytes = weight.num_steps, weight.step_bytes, weight.above_bytes
    codes = weight.codes + panel * num_steps * step_bytes
    above = weight.above + panel * num_steps * above_bytes
    tables, target = chains.tables.ctypes.data, chunk.ctypes.data
    strides = (np.int64(2 * x.shape[1]), np.int64(4 * input_sums.shape[1]))
    totals[: x.shape[0] * PANEL] = np.float32(0.0)
    in_step = chains_of_step(weight)
    chain_bytes = chains.steps * _STEP_BYTES // in_step
    for begin in range(0, num_steps, CHUNK_STEPS):
        steps = min(CHUNK_STEPS, num_steps - begin)
        for step in range(steps):
            if step % chains.steps == 0:
                place = step // chains.steps * in_step * NUMBER_BYTES
                begin_chain(weight, panel, begin + step, numbers.ctypes.data + place)
            prefetch_at(codes + _BYTES_AHEAD, step_bytes // 64)
            unpack_step(weight, codes, above, tables, target + step * _STEP_BYTES)
            codes += step_bytes
            above += above_bytes
        # Whole chains, then one over the remaining steps.
        whole = np.int64(steps // chains.steps * in_step), np.int64(chain_bytes // _ROW_BYTES)
        rest = np.int64(1), np.int64(steps % chains.steps * _STEP_BYTES // _ROW_BYTES)
        # Blocks of six rows, then of four.
        sixes = (x.shape[0] - 2 * (-x.shape[0] % ROWS)) // ROWS
        row = 0
        while row < x.shape[0]:
            inputs = np.int64(x.ctypes.data + row * strides[0] + 2 * begin * STEP)
            sums = np.int64(input_sums.ctypes.data)
            if has_shifts(weight):
                sums += row * strides[1] + 4 * (begin // chains.steps)
            first, place = np.int64(numbers.ctypes.data), np.int64(target)
            into = np.int64(totals.ctypes.data + row * _ROW_BYTES)
            for sizes in (whole, rest):
                if sizes[1] > 0:
                    of_rows = inputs, sums, strides
                    if row < sixes * ROWS:
                        multiply_many(weight, place, sizes, of_rows, first, into)
                    else:
                        multiply_fewer(weight, place, sizes, of_rows, first, into)
                num_pairs = sizes[0] * sizes[1]
                first += sizes[0] * NUMBER_BYTES
                place += num_pairs * _ROW_BYTES
                inputs += num_pairs * _PAIR_BYTES
                sums += sizes[0] * 4
            row += ROWS if row < sixes * ROWS else FEWER_ROWS


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
    """Codes that include -128."""


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
    {each: multiply_fma(num_rows, is_shifted=each) for each in (False, True)}
    for num_rows in (ROWS, FEWER_ROWS)
)


class PairArrays:
    """A weight in pairs of codes: `arrays`, their addresses `places`, and fields of `Chains`."""

    def __init__(self, weight: PackedWeight) -> None:
        form = weight.form
        num_bits = form.held_bits
        converted = num_bits == 8 and not form.is_float and int(weight.codes[:].min()) == -128
        held = CodeArrays(weight, Layout.BYTE_PAIRS if converted else Layout.PAIRS)
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

    def __getstate__(self) -> dict[str, Any]:
        """Return arrays and facts, without addresses."""
        return {
            "arrays": self.arrays,
            "tables": self.tables,
            "form": astuple(_FORMS[type(self.places)]),
            "facts": self.places.facts,
            "chain_steps": self.chain_steps,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.arrays, self.tables = state["arrays"], state["tables"]
        self.places = _OF_FORM[PairForm(*state["form"])](*state["facts"]).at(self.arrays)
        self.chain_steps = state["chain_steps"]


@inlined(fastmath=EXACT)
def begin_chain(weight: Any, panel: Any, step: Any, numbers: Any) -> None:
    """Write the scales and shifts of the chain that begins at a step to an address."""
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
    """Inside kernels: return True if there are zero points or minima."""
    raise NotImplementedError("only compiled code calls this")


def chains_of_step(weight: Any) -> int:
    """Inside kernels: return the number of chains of a step."""
    raise NotImplementedError("only compiled code calls this")


def unpack_step(weight: Any, codes: Any, above: Any, tables: Any, target: Any) -> None:
    """Inside kernels: write the code values of a step to an address, see `unpack_pairs`."""
    raise NotImplementedError("only compiled code calls this")


def multiply_one(weight: Any, codes: Any, steps: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: add a chain's products with one row and two panels.

    codes: places, distances, and the address of tables; x: addresses of inputs and of sums of
    these, and strides of both. See `multiply_pairs`.
    """
    raise NotImplementedError("only compiled code calls this")


def multiply_few(weight: Any, codes: Any, steps: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: `multiply_one` for `FEW_ROWS` rows and one panel."""
    raise NotImplementedError("only compiled code calls this")


def multiply_many(weight: Any, chunk: Any, sizes: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: add products of chains of unpacked code values with `ROWS` rows.

    sizes: the number of chains, and of pairs of each. x: as in `multiply_one`.
    """
    raise NotImplementedError("only compiled code calls this")


def multiply_fewer(weight: Any, chunk: Any, sizes: Any, x: Any, numbers: Any, totals: Any) -> None:
    """Inside kernels: `multiply_many` for `FEWER_ROWS` rows."""
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
