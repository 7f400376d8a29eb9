"""Products of quantized weights with inputs rounded to int8, on AMX tiles.

The numbers of `int8_product`, in the same order and so with the same bytes: a tile adds up to 64
products of codes at once, exactly, and the sums of a group of weights are scaled and added in
vectors. While these work on one group, the tile unit multiplies the next. For groups of 128 inputs
both take as long; groups of 32 are bound by writing tiles and scaling.

A chunk of a panel is unpacked once for all rows of a batch, to quads [inputs / 4, 32 columns] as
they are: sixteen columns of sixteen quads are a tile. Inputs are in blocks of sixteen rows,
[blocks, parts, 16 rows, `part_size`]; a part of them is a tile.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import EXACT, SERIAL_ELEMENTS, inlined, kernel
from pagedrun.kernels.cpu.linears.epilogue import write_block
from pagedrun.kernels.cpu.linears.panel_product import PANELS_OF_TASK, cut_panels, next_panels
from pagedrun.kernels.cpu.quantized.code_arrays import FLOAT8, PANEL, QUADS, STEP
from pagedrun.kernels.cpu.quantized.int8_product import read_numbers_of_sums
from pagedrun.kernels.cpu.quantized.panel_codes import KINDS
from pagedrun.kernels.cpu.quantized.quads import NUMBER_BYTES, QUAD_BYTES, unpack_bytes
from pagedrun.kernels.cpu.quantized.rounding import read_row, round_row
from pagedrun.kernels.cpu.simd import amx
from pagedrun.kernels.cpu.simd.arrays import INT64, aligned_floats, prefetch_at
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, WORDS, spread

ROWS = amx.TILE_ROWS  # of a block
_PAIR = 2 * ROWS
CHUNK_STEPS = 4  # a piece, its inputs, sums and totals stay in L1 up to 64 rows
ROWS_AT_ONCE = 256  # their part of a chunk and their totals stay in L2
_CACHED_INPUTS = 1 << 20  # bytes
_BYTES_AHEAD = 3072  # prefetch distance in a weight's memory
_SUMS = _PAIR * PANEL
_SUMS_BYTES = 4 * _SUMS
_CHUNK_BYTES = CHUNK_STEPS * QUADS * QUAD_BYTES
_NUMBERS_BYTES = 2 * CHUNK_STEPS * 2 * NUMBER_BYTES
_OF_SUM = 2 * 4 * ROWS  # bytes of a block's numbers
_FLOAT = ir.FloatType()


class SumTiles(NamedTuple):
    """Tiles whose rows are inputs of one integer sum: their shapes, see `configure`, and how many
    inputs that are. min_rows: of a weight, from which on tiles are faster than `int8_product`.
    """

    shapes: NDArray[np.uint8]
    part_size: int
    min_rows: int

    @classmethod
    def of(cls, sum_size: int) -> "SumTiles | None":
        """Return the tiles for sums of so many inputs; None if they are never faster."""
        if sum_size not in _MIN_ROWS:
            return None
        part_size = min(sum_size, amx.TILE_BYTES)
        return cls(amx.tile_shapes(row_bytes=part_size), part_size, _MIN_ROWS[sum_size])


# Measured on an Emerald Rapids; with sums of 16 inputs tiles never were.
_MIN_ROWS = {128: 10, 64: 24, 32: 32}


@kernel
def multiply_int8_tiles(
    num_threads: Any,
    x: Any,
    chosen: Any,
    weights: Any,
    sum_size: Any,
    bias: Any,
    shapes: Any,
    part_size: Any,
    out: Any,
) -> None:
    """Write the products of rows of x with the weights of their experts to `out`.

    shapes, part_size: see `SumTiles`. The others: see `int8_product.multiply_int8`.
    """
    num_panels, num_steps = (out.shape[1] + PANEL - 1) // PANEL, weights.num_steps
    segments, num_used = chosen.segments, chosen.segments.shape[0]
    num_sums = (num_steps * STEP + sum_size - 1) // sum_size
    blocks = np.empty(num_used + 1, np.int64)  # before those of an expert
    blocks[0] = 0
    for used in range(num_used):
        num_rows = segments[used, 2] - segments[used, 1]
        blocks[used + 1] = blocks[used] + (num_rows + ROWS - 1) // ROWS
    inputs = aligned_floats(blocks[num_used] * ROWS * num_sums * sum_size // 4)
    of_rows = aligned_floats(blocks[num_used] * ROWS * num_sums * 2)
    for used in range(num_used):
        num_blocks = blocks[used + 1] - blocks[used]
        codes = inputs.view(np.int8)[blocks[used] * ROWS * num_sums * sum_size :]
        numbers = of_rows[blocks[used] * ROWS * num_sums * 2 :]
        rows = segments[used]
        if num_blocks * ROWS * x.shape[1] <= SERIAL_ELEMENTS:
            for i in range(num_blocks):
                _round_block(x, chosen.tokens, rows, i, sum_size, part_size, codes, numbers)
        else:
            for i in numba.prange(num_blocks):
                _round_block(x, chosen.tokens, rows, i, sum_size, part_size, codes, numbers)
    num_chunks = (num_steps + CHUNK_STEPS - 1) // CHUNK_STEPS
    cut = cut_panels(num_threads, num_used, num_panels, PANELS_OF_TASK)
    for thread in numba.prange(num_threads):
        while True:
            used, start, end = next_panels(cut, thread)
            if start == end:
                break
            amx.configure(shapes)
            first, num_rows = segments[used, 1], segments[used, 2] - segments[used, 1]
            offset = segments[used, 0] * num_panels
            own_bias = bias[offset * PANEL :]
            own = blocks[used] * num_sums
            own_inputs = (
                inputs.ctypes.data + own * ROWS * sum_size,
                of_rows.ctypes.data + own * _OF_SUM,
            )
            chunk = aligned_floats(2 * _CHUNK_BYTES // 4)
            numbers = aligned_floats(2 * _NUMBERS_BYTES // 4)
            sums = aligned_floats(2 * _SUMS)
            height = min(ROWS_AT_ONCE, (num_rows + _PAIR - 1) // _PAIR * _PAIR)
            totals = aligned_floats((end - start) * height * PANEL)
            for row in range(0, num_rows, ROWS_AT_ONCE):
                count = min(ROWS_AT_ONCE, num_rows - row)
                # Inputs that stay in L2 meet one panel after the other, as these lie in memory.
                is_cached = count * num_sums * sum_size <= _CACHED_INPUTS
                num_pieces = num_chunks * (end - start)
                for piece in range(-1, num_pieces):
                    if piece + 1 < num_pieces:
                        panel, step = _place(piece + 1, is_cached, num_chunks, end - start)
                        steps, place = min(CHUNK_STEPS, num_steps - step), offset + start + panel
                        memory = _memory_of(chunk, numbers, piece + 1)
                        _read_chunk(weights, place, step, steps, sum_size, memory)
                    if piece >= 0:  # read in the turn before: tiles wait for stores to complete
                        panel, step = _place(piece, is_cached, num_chunks, end - start)
                        steps = min(CHUNK_STEPS, num_steps - step)
                        _multiply_chunk(
                            weights,
                            own_inputs,
                            (row, count),
                            (step * STEP // sum_size, (steps * STEP + sum_size - 1) // sum_size),
                            (num_sums, sum_size, part_size),
                            _memory_of(chunk, numbers, piece),
                            sums.ctypes.data,
                            totals.ctypes.data + panel * height * NUMBER_BYTES,
                        )
                for i in range(0, count, ROWS):
                    for panel in range(start, end):
                        place = ((panel - start) * height + i) * PANEL
                        rows = min(ROWS, count - i)
                        write_block(
                            totals, place, rows, own_bias, first + row + i, panel * PANEL, out
                        )
            amx.release()
            # Numba frees an array after its last use, and does not track addresses.
            chunk[0], numbers[0], totals[0] = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            sums[0] = np.float32(0.0)
    if inputs.shape[0] > 0:
        inputs[0], of_rows[0] = np.float32(0.0), np.float32(0.0)


@inlined(fastmath=EXACT)
def _round_block(
    x: Any,
    tokens: Any,
    segment: Any,
    block: Any,
    sum_size: Any,
    part_size: Any,
    inputs: Any,
    of_rows: Any,
) -> None:
    """Write the codes of a block of rows of an expert, scales of their sums and scaled sums."""
    num_sums = (x.shape[1] + sum_size - 1) // sum_size
    values = np.empty(num_sums * sum_size, np.float32)
    scales, added = np.empty(num_sums, np.float32), np.empty(num_sums, np.float32)
    for row in range(ROWS):
        read_row(x, tokens, segment, block * ROWS + row, values)
        place = block * ROWS * num_sums * sum_size + row * part_size
        round_row(values, sum_size, inputs, place, ROWS * part_size, scales, added)
        at = block * num_sums * 2 * ROWS + row
        for j in range(num_sums):
            of_rows[at] = scales[j]
            of_rows[at + ROWS] = scales[j] * added[j]
            at += 2 * ROWS
    values[0] = np.float32(0.0)  # Numba frees an array after its last use


@inlined()
def _place(piece: Any, is_cached: Any, num_chunks: Any, num_panels: Any) -> Any:
    """Return the panel of a piece of a task's weights, and the first step."""
    if is_cached:
        return piece // num_chunks, piece % num_chunks * CHUNK_STEPS
    return piece % num_panels, piece // num_panels * CHUNK_STEPS


@inlined()
def _memory_of(chunk: Any, numbers: Any, piece: Any) -> Any:
    """Return the addresses of a piece's quads, and of its numbers."""
    half = piece % 2
    return chunk.ctypes.data + half * _CHUNK_BYTES, numbers.ctypes.data + half * _NUMBERS_BYTES


@inlined(fastmath=EXACT)
def _read_chunk(
    weights: Any, panel: Any, step: Any, steps: Any, sum_size: Any, memory: Any
) -> None:
    """Write quads of steps of a panel, and the scales and shifts of each integer sum.

    memory: addresses of both.
    """
    target, numbers = memory
    for i in range(steps):
        at = panel * weights.num_steps + step + i
        codes = weights.codes + at * weights.step_bytes
        above = weights.above + at * weights.above_bytes
        prefetch_at(codes + _BYTES_AHEAD, weights.step_bytes // 64)
        prefetch_at(above + _BYTES_AHEAD // 4, weights.above_bytes // 64)
        _unpack(weights, codes, above, target + i * QUADS * QUAD_BYTES)
    read_numbers_of_sums(weights, panel, step, steps, sum_size, numbers)


@inlined(fastmath=EXACT)
def _multiply_chunk(
    weights: Any, inputs: Any, rows: Any, run: Any, sizes: Any, chunk: Any, sums: Any, totals: Any
) -> None:
    """Add the products of rows with a chunk to totals [rows, 32].

    All memory is given by addresses. inputs: codes of blocks, and the numbers of their sums. rows:
    first, and their number. run: first sum of the chunk, and their number. sizes: sums of a row,
    inputs of a sum, inputs of a part. chunk: quads, and numbers as of `multiply_quads`. sums: for
    two of [32, 32] int32.
    """
    row, count = rows
    first, num_runs = run
    num_sums, sum_size, part_size = sizes
    of_codes, of_part = ROWS * sum_size, ROWS * part_size
    for i in range(0, count, _PAIR):
        num_blocks = 2 if i + ROWS < count else 1
        place = (row + i) // ROWS * num_sums + first
        x, own = inputs[0] + place * of_codes, inputs[1] + place * _OF_SUM
        y = x + num_sums * of_codes
        w, column = chunk
        target = totals + i * NUMBER_BYTES
        for j in range(num_runs + 1):
            if j < num_runs:
                amx.zero_sums()
                for _ in range(0, sum_size, part_size):
                    amx.load_a0(x, 0, part_size)
                    amx.load_b0(w, 0, QUAD_BYTES)
                    amx.load_b1(w, ROWS, QUAD_BYTES)
                    amx.dot_bytes_00()
                    amx.dot_bytes_01()
                    if num_blocks == 2:
                        amx.load_a1(y, 0, part_size)
                        amx.dot_bytes_10()
                        amx.dot_bytes_11()
                    x, y = x + of_part, y + of_part
                    w += part_size // 4 * QUAD_BYTES
                amx.store_sums(sums + j % 2 * _SUMS_BYTES, 0)
            # The sums before these, which tiles have finished meanwhile.
            if j > 0:
                done = sums + (j - 1) % 2 * _SUMS_BYTES
                begins = first + j == 1
                _add(weights, done, (own, num_sums * _OF_SUM), column, target, num_blocks, begins)
                own, column = own + _OF_SUM, column + 2 * NUMBER_BYTES


def _add(
    weights: Any, sums: Any, of_rows: Any, numbers: Any, totals: Any, num_blocks: Any, begins: Any
) -> None:
    """Inside kernels: scale the sums of one or two blocks and add them to their totals.

    All at addresses. of_rows: that of the first block, and how far behind it the second lies.
    begins: there are no totals yet.
    """
    raise NotImplementedError("only compiled code calls this")


def _adding(is_shifted: bool) -> Any:
    """Return an intrinsic with the arguments of `_add`; see `quads.Finish`."""

    @intrinsic
    def add(
        typing_context: Any,
        sums: Any,
        of_rows: Any,
        stride: Any,
        numbers: Any,
        totals: Any,
        num_blocks: Any,
        begins: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            sums, of_rows, stride, numbers, totals, num_blocks, begins = arguments
            fma = ir.FunctionType(FLOATS, [FLOATS] * 3)
            fma = cgutils.get_or_insert_function(builder.module, fma, "llvm.fma.v16f32")

            def at(address: Any, offset: int, kind: Any) -> Any:
                place = builder.add(address, INT64(offset))
                return builder.inttoptr(place, kind.as_pointer())

            def read(address: Any, offset: int, kind: Any = FLOATS) -> Any:
                return builder.load(at(address, offset, kind), align=4)

            none = ir.Constant(FLOATS, [0.0] * NUM_LANES)
            scales = [read(numbers, 64 * half) for half in range(2)]
            shifts = []
            if is_shifted:
                shifts = [
                    builder.fsub(
                        ir.Constant(FLOATS, [-0.0] * NUM_LANES),
                        read(numbers, NUMBER_BYTES + 64 * half),
                    )
                    for half in range(2)
                ]
            with cgutils.for_range(builder, num_blocks, intp=INT64) as loop:
                of_block, found, kept = (
                    builder.add(address, builder.mul(loop.index, size))
                    for address, size in (
                        (of_rows, stride),
                        (sums, INT64(ROWS * NUMBER_BYTES)),
                        (totals, INT64(ROWS * NUMBER_BYTES)),
                    )
                )
                for i in range(ROWS):
                    scale = spread(builder, read(of_block, 4 * i, _FLOAT))
                    for half in range(2):
                        place = i * NUMBER_BYTES + 64 * half
                        total = builder.select(begins, none, read(kept, place))
                        value = builder.sitofp(read(found, place, WORDS), FLOATS)
                        factor = builder.fmul(scale, scales[half])
                        value = builder.call(fma, [value, factor, total])
                        if is_shifted:
                            scaled = spread(builder, read(of_block, 4 * (ROWS + i), _FLOAT))
                            value = builder.call(fma, [shifts[half], scaled, value])
                        builder.store(value, at(kept, place, FLOATS), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6, types.boolean), generate

    return add


def _unpack(weights: Any, codes: Any, above: Any, target: Any) -> None:
    """Inside kernels: write a step's quads to an address; see `unpack_bytes`."""
    raise NotImplementedError("only compiled code calls this")


_UNPACKING = {
    codes: unpack_bytes(kind, is_signed=True)
    for codes, (kind, _) in KINDS.items()
    if kind != FLOAT8
}


_ADDING = {is_shifted: _adding(is_shifted) for is_shifted in (False, True)}


@overload(_add, strict=False)
def _overload_add(
    weights: Any, sums: Any, of_rows: Any, numbers: Any, totals: Any, num_blocks: Any, begins: Any
) -> Any:
    add = _ADDING[KINDS[weights.instance_class][1]]
    return lambda weights, sums, of_rows, numbers, totals, num_blocks, begins: add(
        sums, of_rows[0], of_rows[1], numbers, totals, num_blocks, begins
    )


@overload(_unpack, strict=False)
def _overload_unpack(weights: Any, codes: Any, above: Any, target: Any) -> Any:
    unpack = _UNPACKING[weights.instance_class]
    return lambda weights, codes, above, target: unpack(codes, above, weights.offset, target)
