"""Products of quantized weights with inputs rounded to int8, on any processor.

Inputs have a scale for each row and block of neighbors, see `block_sizes`. Sums of products of
codes over a block, or over a group of weights within it, are exact integers. Each output adds these
in ascending order, scaled, in float32: it has the same bytes in every batch and on every processor.

A chunk of a panel is unpacked once for all rows of a batch; a single row is multiplied by the codes
as they lie in memory. See `quads`.
"""

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import EXACT, SERIAL_ELEMENTS, inlined, kernel
from pagedrun.kernels.cpu.linears.epilogue import write_block
from pagedrun.kernels.cpu.linears.panel_product import (
    BLOCK,
    FEW_ROWS,
    PANELS_OF_TASK,
    ROWS_AT_ONCE,
    block_of_row,
    cut_panels,
    next_panels,
    rows_in_full_blocks,
    whole_blocks,
)
from pagedrun.kernels.cpu.quantized.code_arrays import FLOAT8, PANEL, QUADS, STEP
from pagedrun.kernels.cpu.quantized.panel_codes import KINDS, read_scales
from pagedrun.kernels.cpu.quantized.quads import (
    ABOVE_AHEAD,
    BLOCK_COLUMNS,
    BYTES_AHEAD,
    NUMBER_BYTES,
    QUAD_BYTES,
    Finish,
    is_signed_when_packed,
    multiply_packed,
    multiply_quads,
    reads_packed,
    takes_pairs,
    unpack_bytes,
)
from pagedrun.kernels.cpu.quantized.rounding import PART, read_row, round_row
from pagedrun.kernels.cpu.simd.arrays import aligned_floats, prefetch_at

CHUNK_STEPS = 8
_MOST_SUMS = 2 * CHUNK_STEPS  # of a chunk, with groups of sixteen


@kernel
def multiply_int8(
    num_threads: Any, x: Any, chosen: Any, weights: Any, sum_size: Any, bias: Any, out: Any
) -> None:
    """Write the products of rows of x with the weights of their experts to `out`.

    weights: codes of `PanelArrays`. sum_size: inputs of an integer sum, see `block_sizes`. The
    others: see `multiply_panels`.
    """
    num_panels, num_steps = (out.shape[1] + PANEL - 1) // PANEL, weights.num_steps
    segments = chosen.segments
    num_sums = (num_steps * STEP + sum_size - 1) // sum_size
    words = parts_of_quad(weights) * QUADS * num_steps  # of a row
    inputs = aligned_floats(chosen.total * words)
    of_rows = aligned_floats(chosen.total * num_sums * 3)
    for used in range(segments.shape[0]):
        total = whole_blocks(segments[used, 2] - segments[used, 1])
        num_blocks = (total + BLOCK - 1) // BLOCK
        if total * x.shape[1] <= SERIAL_ELEMENTS:
            for block in range(num_blocks):
                _round_block(x, chosen, used, block, total, weights, sum_size, inputs, of_rows)
        else:
            for block in numba.prange(num_blocks):
                _round_block(x, chosen, used, block, total, weights, sum_size, inputs, of_rows)
    cut = cut_panels(num_threads, segments.shape[0], num_panels, PANELS_OF_TASK)
    for thread in numba.prange(num_threads):
        while True:
            used, start, end = next_panels(cut, thread)
            if start == end:
                break
            first, last, place = segments[used, 1], segments[used, 2], segments[used, 3]
            total = whole_blocks(last - first)
            full = rows_in_full_blocks(total)
            offset = segments[used, 0] * num_panels
            own_bias = bias[offset * PANEL :]
            own_inputs = inputs.ctypes.data + 4 * place * words
            own_numbers = of_rows.ctypes.data + 12 * place * num_sums
            chunk = aligned_floats(CHUNK_STEPS * QUADS * QUAD_BYTES * parts_of_quad(weights) // 4)
            numbers = aligned_floats(_MOST_SUMS * 2 * PANEL)
            totals = aligned_floats((end - start) * min(total, ROWS_AT_ONCE + 2 * BLOCK) * PANEL)
            # Few rows read one panel after the other; with more, a batch of them meets several.
            at_once = 1 if total <= FEW_ROWS else end - start
            for begin in range(start, end, at_once):
                row = 0
                while row < total:
                    stop = row + ROWS_AT_ONCE if row + ROWS_AT_ONCE < full else total
                    size = (stop - row) * PANEL
                    totals[: at_once * size] = np.float32(0.0)
                    for step in range(0, num_steps, CHUNK_STEPS):
                        steps = min(CHUNK_STEPS, num_steps - step)
                        if total == 1 and is_multiplied_packed(weights, sum_size):
                            read_numbers_of_sums(
                                weights,
                                offset + begin,
                                step,
                                steps,
                                sum_size,
                                numbers.ctypes.data,
                            )
                            _multiply_row(
                                weights,
                                offset + begin,
                                (step, steps, sum_size),
                                (own_inputs, own_numbers, numbers.ctypes.data, totals.ctypes.data),
                            )
                            continue
                        for panel in range(begin, begin + at_once):
                            _read_chunk(
                                weights, offset + panel, step, steps, sum_size, chunk, numbers
                            )
                            _multiply_chunk(
                                (own_inputs, own_numbers, row, full, stop),
                                weights,
                                (step, steps, sum_size, num_sums),
                                chunk,
                                numbers,
                                totals.ctypes.data + 4 * (panel - begin) * size,
                            )
                    # A few rows at a time, so that a row's panels are written side by side.
                    for i in range(row, stop, BLOCK):
                        num_rows = min(min(i + BLOCK, stop), last - first) - i
                        for panel in range(begin, begin + at_once):
                            target = (panel - begin) * size + (i - row) * PANEL
                            column = panel * PANEL
                            write_block(totals, target, num_rows, own_bias, first + i, column, out)
                    row = stop
            # Numba frees an array after its last use, and does not track addresses.
            chunk[0], numbers[0], totals[0] = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    if inputs.shape[0] > 0:
        inputs[0], of_rows[0] = np.float32(0.0), np.float32(0.0)


@inlined(fastmath=EXACT)
def _read_chunk(
    weights: Any, panel: Any, step: Any, steps: Any, sum_size: Any, chunk: Any, numbers: Any
) -> None:
    """Unpack steps of a panel, and write the scales and shifts of each integer sum."""
    target, size = chunk.ctypes.data, QUADS * QUAD_BYTES * parts_of_quad(weights)
    for i in range(steps):
        at = panel * weights.num_steps + step + i
        codes, above = (
            weights.codes + at * weights.step_bytes,
            weights.above + at * weights.above_bytes,
        )
        prefetch_at(codes + BYTES_AHEAD, weights.step_bytes // 64)
        prefetch_at(above + ABOVE_AHEAD, weights.above_bytes // 64)
        _unpack(weights, codes, above, target + i * size)
    read_numbers_of_sums(weights, panel, step, steps, sum_size, numbers.ctypes.data)


@inlined(fastmath=EXACT)
def read_numbers_of_sums(
    weights: Any, panel: Any, step: Any, steps: Any, sum_size: Any, target: Any
) -> None:
    """Write the scales and shifts of each integer sum of some steps to an address."""
    first = step * STEP // sum_size
    for i in range((steps * STEP + sum_size - 1) // sum_size):
        group = (first + i) * sum_size // weights.group_size
        read_scales(weights, panel, group, target + i * 2 * NUMBER_BYTES)


@inlined(fastmath=EXACT)
def _multiply_chunk(
    rows: Any, weights: Any, counts: Any, chunk: Any, numbers: Any, totals: Any
) -> None:
    """Add the products of a batch's blocks with a chunk.

    rows: addresses of inputs and of their numbers, first row, end of full blocks, end of rows.
    counts: first step, steps, inputs of a sum, sums of a row.
    """
    inputs, of_rows, first, full, stop = rows
    step, steps, sum_size, num_sums = counts
    parts = parts_of_quad(weights)
    first_sum, num_quads = step * STEP // sum_size, sum_size // 4
    for column in range(0, PANEL, BLOCK_COLUMNS):
        row = first
        while row < stop:
            height = BLOCK if row < full else min(stop - row, FEW_ROWS)
            x = inputs + 4 * parts * (row * QUADS * weights.num_steps + height * QUADS * step)
            own = of_rows + 12 * (row * num_sums + height * first_sum)
            w, group = chunk.ctypes.data + 4 * column, numbers.ctypes.data + 4 * column
            target = totals + (row - first) * NUMBER_BYTES + 4 * column
            runs = steps * QUADS // num_quads
            at = x, w, own, group, target
            _multiply_block(weights, height, at, num_quads, runs)
            # A chunk that is the last of a row may end within a sum.
            left = steps * QUADS - runs * num_quads
            if left > 0:
                x += 4 * parts * height * runs * num_quads
                w += parts * QUAD_BYTES * runs * num_quads
                own += 12 * height * runs
                group += 2 * NUMBER_BYTES * runs
                _multiply_block(weights, height, (x, w, own, group, target), left, 1)
            row += height


@inlined(fastmath=EXACT)
def _multiply_row(weights: Any, panel: Any, counts: Any, at: Any) -> None:
    """Add the products of a row with steps of a panel.

    counts: first step, steps, inputs of a sum. at: addresses of inputs, numbers of the row, numbers
    of the sums, and totals.
    """
    step, steps, sum_size = counts
    inputs, of_row, numbers, totals = at
    inputs += 4 * QUADS * step
    of_row += 12 * (step * STEP // sum_size)
    place = panel * weights.num_steps + step
    codes = weights.codes + place * weights.step_bytes
    above = weights.above + place * weights.above_bytes
    in_run = sum_size // STEP
    runs = steps // in_run
    _multiply_packed(weights, (inputs, codes, above), in_run, runs, of_row, numbers, totals)
    # A chunk that is the last of a row may end within a sum.
    left, done = steps - runs * in_run, runs * in_run
    if left > 0:
        inputs += 4 * QUADS * done
        codes += done * weights.step_bytes
        above += done * weights.above_bytes
        of_row += 12 * runs
        numbers += 2 * NUMBER_BYTES * runs
        _multiply_packed(weights, (inputs, codes, above), left, 1, of_row, numbers, totals)


@inlined(fastmath=EXACT)
def _round_block(
    x: Any,
    chosen: Any,
    used: Any,
    block: Any,
    total: Any,
    weights: Any,
    sum_size: Any,
    inputs: Any,
    of_rows: Any,
) -> None:
    """Write the codes of `BLOCK` rows of an expert, or its last ones, into their blocks.

    With them what belongs to their sums.
    """
    segment, parts, offset = chosen.segments[used], parts_of_quad(weights), weights.offset
    if total == 1 and is_multiplied_packed(weights, sum_size):
        parts, offset = 1, offset - packed_offset(weights)
    num_quads = QUADS * weights.num_steps
    num_sums = (4 * num_quads + sum_size - 1) // sum_size
    values = np.empty(num_sums * sum_size, np.float32)
    codes = np.empty(num_sums * sum_size, np.int8)
    scales, added = np.empty(num_sums, np.float32), np.empty(num_sums, np.float32)
    integers, words = of_rows.view(np.int32), inputs.view(np.int32)
    for i in range(block * BLOCK, min((block + 1) * BLOCK, total)):
        read_row(x, chosen.tokens, segment, i, values)
        round_row(values, sum_size, codes, 0, min(sum_size, PART), scales, added)
        height, first = block_of_row(i, total)
        place = segment[3] + first
        at = 3 * place * num_sums + i - first
        for j in range(num_sums):
            integers[at] = np.int32(-offset) * np.int32(added[j])
            of_rows[at + height] = scales[j]
            of_rows[at + 2 * height] = scales[j] * added[j]
            at += 3 * height
        target = words[parts * place * num_quads + i - first :]
        write_quads(codes, num_quads, parts, target, height)
    values[0] = np.float32(0.0)  # Numba frees an array after its last use


@inlined()
def write_quads(codes: Any, num_quads: Any, parts: Any, target: Any, height: Any) -> None:
    """Write the codes of a row into its block of `height` rows; parts: words of a quad."""
    if parts == 1:
        quads = codes.view(np.int32)
        for q in range(num_quads):
            target[q * height] = quads[q]
        return
    for q in range(num_quads):
        for part in range(2):
            low = np.int32(codes[4 * q + part]) & np.int32(0xFFFF)
            high = np.int32(np.int32(codes[4 * q + 2 + part]) << np.int32(16))
            target[(2 * q + part) * height] = low | high


@inlined()
def largest_magnitude(row: Any) -> Any:
    """Return the largest magnitude of a row, NaN if one is NaN.

    Bits of magnitudes, as integers, have the order of the numbers, with infinity and NaN last.
    """
    largest = np.uint32(0)
    for k in range(row.shape[0]):
        bits = np.float32(to_float32(row[k])).view(np.uint32)
        largest = max(largest, np.uint32(bits & np.uint32(0x7FFFFFFF)))
    found = np.uint32(largest)
    return found.view(np.float32)


def parts_of_quad(weights: Any) -> int:
    """Inside kernels: return the words of an input's quad: two of 16 bits a number, or one."""
    raise NotImplementedError("only compiled code calls this")


def is_multiplied_packed(weights: Any, sum_size: Any) -> bool:
    """Inside kernels: return True if a single row is multiplied by `multiply_packed`."""
    raise NotImplementedError("only compiled code calls this")


def packed_offset(weights: Any) -> int:
    """Inside kernels: return the number by which `multiply_packed` lowers codes in memory."""
    raise NotImplementedError("only compiled code calls this")


def _multiply_packed(
    weights: Any, at: Any, steps: Any, runs: Any, of_row: Any, numbers: Any, totals: Any
) -> None:
    """Inside kernels: see `multiply_packed`. at: addresses of inputs, codes and bits above."""
    raise NotImplementedError("only compiled code calls this")


def _unpack(weights: Any, codes: Any, above: Any, target: Any) -> None:
    """Inside kernels: write a step's quads to an address; see `unpack_bytes`."""
    raise NotImplementedError("only compiled code calls this")


def _multiply_block(weights: Any, height: Any, at: Any, quads: Any, runs: Any) -> None:
    """Inside kernels: add the products of a block of 1, 4 or `BLOCK` rows; see `multiply_quads`.

    at: addresses of inputs, weights, numbers of rows and of columns, and totals.
    """
    raise NotImplementedError("only compiled code calls this")


_INTEGERS = {codes: kind for codes, kind in KINDS.items() if kind[0] != FLOAT8}
_UNPACKING = {
    codes: unpack_bytes(kind, in_pairs=takes_pairs(kind)) for codes, (kind, _) in _INTEGERS.items()
}
# Rows whose integer sums and totals fill the registers together: of a block with AVX-512 half.
_PART = 6
_MULTIPLYING = {
    codes: [
        multiply_quads(kind, height, Finish.SHIFTED if is_shifted else Finish.SCALED, block)
        for height, block in ((1, 1), (FEW_ROWS, FEW_ROWS), (_PART, BLOCK))
    ]
    for codes, (kind, is_shifted) in _INTEGERS.items()
}


_PACKED = {
    codes: multiply_packed(kind, Finish.SHIFTED if is_shifted else Finish.SCALED)
    for codes, (kind, is_shifted) in _INTEGERS.items()
}


@overload(is_multiplied_packed, strict=False)
def _overload_is_multiplied_packed(weights: Any, sum_size: Any) -> Any:
    if not reads_packed(_INTEGERS[weights.instance_class][0]):
        return lambda weights, sum_size: False
    return lambda weights, sum_size: sum_size >= STEP


@overload(packed_offset, strict=False)
def _overload_packed_offset(weights: Any) -> Any:
    offset = 128 if is_signed_when_packed(_INTEGERS[weights.instance_class][0]) else 0
    return lambda weights: offset


@overload(_multiply_packed, strict=False)
def _overload_multiply_packed(
    weights: Any, at: Any, steps: Any, runs: Any, of_row: Any, numbers: Any, totals: Any
) -> Any:
    multiply = _PACKED[weights.instance_class]

    def multiply_steps(
        weights: Any, at: Any, steps: Any, runs: Any, of_row: Any, numbers: Any, totals: Any
    ) -> None:
        inputs, codes, above = at
        sizes = weights.step_bytes, weights.above_bytes
        multiply(inputs, codes, above, sizes[0], sizes[1], steps, runs, of_row, numbers, totals)

    return multiply_steps


@overload(parts_of_quad, strict=False)
def _overload_parts(weights: Any) -> Any:
    parts = 2 if takes_pairs(_INTEGERS[weights.instance_class][0]) else 1
    return lambda weights: parts


@overload(_unpack, strict=False)
def _overload_unpack(weights: Any, codes: Any, above: Any, target: Any) -> Any:
    unpack = _UNPACKING[weights.instance_class]
    return lambda weights, codes, above, target: unpack(codes, above, 0, target)


@overload(_multiply_block, strict=False)
def _overload_multiply_block(weights: Any, height: Any, at: Any, quads: Any, runs: Any) -> Any:
    one, few, part = _MULTIPLYING[weights.instance_class]

    def multiply(weights: Any, height: Any, at: Any, quads: Any, runs: Any) -> None:
        x, w, of_rows, numbers, totals = at
        if height == BLOCK:
            for row in range(0, BLOCK, _PART):
                target = totals + row * NUMBER_BYTES
                part(x + 4 * row, w, quads, runs, of_rows + 4 * row, numbers, target)
        elif height == FEW_ROWS:
            few(x, w, quads, runs, of_rows, numbers, totals)
        else:
            one(x, w, quads, runs, of_rows, numbers, totals)

    return multiply
