"""Linear layers in int8, weights and inputs: AMX tiles, or quads on any processor.

Sums are exact in both, so they give the same bytes. A tile holds twice as many terms as in
bfloat16.
"""

from typing import Any

import numba
import numpy as np
import torch
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.activations import gelu_row
from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.jit import EXACT, choose_threads, inlined, kernel, num_threads
from pagedrun.kernels.cpu.linears.amx_linear import PANEL, multiply_tiles
from pagedrun.kernels.cpu.linears.epilogue import (
    COLUMNS,
    Scales,
    ShiftedScales,
    padded_bias,
    write_block,
)
from pagedrun.kernels.cpu.linears.panel_product import (
    BLOCK,
    FEW_ROWS,
    PANELS_OF_TASK,
    ROWS_AT_ONCE,
    block_of_row,
    rows_in_full_blocks,
    whole_blocks,
)
from pagedrun.kernels.cpu.quantized import quads
from pagedrun.kernels.cpu.quantized.code_arrays import EIGHT_BITS, QUADS, pack_quads
from pagedrun.kernels.cpu.quantized.code_arrays import STEP as _QUAD_STEP
from pagedrun.kernels.cpu.quantized.int8_product import CHUNK_STEPS, largest_magnitude, write_quads
from pagedrun.kernels.cpu.simd.arrays import (
    aligned_empty,
    aligned_floats,
    next_task,
    share_tasks,
)
from pagedrun.kernels.cpu.simd.lanes import splat, store
from pagedrun.kernels.cpu.simd.words import read_lanes, store_shifted, transposing
from pagedrun.kernels.kernel_set import KernelSet, has_features
from pagedrun.kernels.ops import Linear
from pagedrun.kernels.reference.linear import (
    LARGEST_CODE,
    LOWEST_CODE,
    NUM_STEPS,
    SMALLEST,
    check_in_features,
    int8_bytes,
)


class Int8Amx:
    """Writes `x @ (codes * scales).T + bias` to `out`.

    codes: [out_features, in_features] int8, not kept. columns, bias, column_sums: as in
    `ShiftedScales`; without the last, rows have no shifts.
    """

    def __init__(
        self,
        codes: NDArray[np.int8],
        columns: NDArray[np.float32],
        bias: NDArray[np.float32],
        column_sums: NDArray[np.int32] | None,
    ) -> None:
        num_panels, num_steps = -(-codes.shape[0] // PANEL), -(-codes.shape[1] // STEP)
        self._weights = aligned_empty((num_panels, num_steps, 2, 16, 16), np.uint32)
        _pack_tiles(codes, self._weights.view(np.int8))
        self._columns = _columns(columns, bias, column_sums)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Map x [num_rows, in_features] to out [num_rows, out_features], of the same dtype."""
        codes, scales, shifts = quantized_panels(x, PANEL, shifts=len(self._columns) == 3)
        # In the layout of bfloat16 tiles: those of a step, of 16 rows each, one after the other.
        rows = codes.view(np.uint16).reshape(*codes.shape[:2], 2, 16, STEP // 2)
        choose_threads(self._weights.size)
        epilogue = _epilogue(self._columns, scales, shifts)
        multiply_tiles(num_threads(), rows, self._weights, epilogue, as_array(out))


class Int8Quads:
    """Writes `x @ (codes * scales).T + bias` to `out`, on any processor; see `quads`.

    The arguments are those of `Int8Amx`. Sums start at the negated contribution of the offset of
    codes; they fit 32 bits: 255 * 128 * 2^16 < 2^31.
    """

    def __init__(
        self,
        codes: NDArray[np.int8],
        columns: NDArray[np.float32],
        bias: NDArray[np.float32],
        column_sums: NDArray[np.int32] | None,
    ) -> None:
        steps = -(-codes.shape[0] // COLUMNS), -(-codes.shape[1] // _QUAD_STEP)
        self._weights = aligned_empty((*steps, QUADS * COLUMNS), np.uint32)
        choose_threads(codes.size)
        nothing = np.empty((*steps, 0), np.uint32)
        pack_quads(codes.view(np.uint8), 8, _OFFSET, self._weights, nothing)
        self._columns = _columns(columns, bias, column_sums)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Packed weight, scales, bias, and column sums if there are shifts."""
        return self._weights, *self._columns

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Map x [num_rows, in_features] to out [num_rows, out_features], of the same dtype."""
        if len(x) == 0:
            return
        choose_threads(self._weights.size)
        scales, shifts = np.empty(len(x), np.float32), np.empty(len(x), np.int32)  # not yet known
        epilogue = _epilogue(self._columns, scales, shifts)
        threads, rows = num_threads(), as_array(x.contiguous())
        _multiply_rows(threads, rows, self._weights, epilogue, as_array(out))


Columns = tuple[NDArray[Any], ...]


def _columns(*arrays: NDArray[Any] | None) -> Columns:
    return tuple(each for each in arrays if each is not None)


def _epilogue(
    columns: Columns, scales: NDArray[np.float32], shifts: NDArray[np.int32]
) -> Scales | ShiftedScales:
    """Return the epilogue of rows; `shifts` are not used without column sums."""
    if len(columns) == 2:
        return Scales(scales, *columns)
    factors, bias, column_sums = columns
    return ShiftedScales(scales, factors, bias, shifts, column_sums)


Products = Int8Amx | Int8Quads


class Int8Linear:
    """`y = x @ (codes * scales).T + bias`, with quantized rows of x; see the reference.

    Codes are packed, and not kept. shifts: see the reference. Sums are exact, so all `products`
    give the same bytes. None: the fastest of `kernel_set`, of which None is the processor's best.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        bias: Tensor | None = None,
        kernel_set: KernelSet | None = None,
        products: type[Products] | None = None,
        *,
        shifts: bool = False,
    ) -> None:
        self.out_features, self.in_features = codes.shape
        check_in_features(self.in_features)
        self.num_bytes = int8_bytes(codes, scales, bias, shifts=shifts)
        num_columns = -(-self.out_features // COLUMNS) * COLUMNS
        columns = np.zeros(num_columns, np.float32)
        columns[: self.out_features] = scales.numpy()
        column_sums = np.zeros(num_columns, np.int32) if shifts else None
        if column_sums is not None:
            column_sums[: self.out_features] = codes.sum(dim=1, dtype=torch.int32).numpy()
        multiply = products or _fastest_products(KernelSet.usable(kernel_set))
        self.products = multiply(
            codes.contiguous().numpy(), columns, padded_bias(bias, num_columns), column_sums
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        self.products(x, out)
        return out


def joined_gelu_mlp(up: Linear, down: Linear, x: Tensor) -> Tensor | None:
    """Return `down(gelu(up(x)))`, the same bytes, with all between them in L2.

    None for layers without a kernel for it, or with rows too few for all threads.
    """
    if not (isinstance(up, Int8Linear) and isinstance(down, Int8Linear)):
        return None
    first, second, threads = up.products, down.products, num_threads()
    if not (isinstance(first, Int8Quads) and isinstance(second, Int8Quads)):
        return None
    if len(x) < threads * CACHED_ROWS:
        return None
    height = min(_JOINED_ROWS, -(-len(x) // (threads * BLOCK)) * BLOCK)
    out = torch.empty(len(x), down.out_features, dtype=x.dtype)
    choose_threads(x.numel() * up.out_features)
    arrays = as_array(x.contiguous()), as_array(out)
    layers = first.arrays, second.arrays
    _gelu_mlp(threads, arrays[0], height, up.out_features, *layers, arrays[1])
    return out


def _fastest_products(kernel_set: KernelSet) -> type[Products]:
    if kernel_set is KernelSet.AMX and has_features("amx-int8"):
        return Int8Amx
    return Int8Quads


@kernel
def _pack_tiles(codes: Any, packed: Any) -> None:
    """Copy codes [columns, k] to tiles [.., 16, 64]; a row holds four codes of 16 columns.

    Zeros follow the ends.
    """
    num_columns, num_k = codes.shape
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = 0
        for column in range(min(PANEL, num_columns - panel * PANEL)):
            tile, place = column // 16, column % 16 * 4
            source = codes[panel * PANEL + column]
            for k in range(num_k):
                packed[panel, k // STEP, tile, k % STEP // 4, place + k % 4] = source[k]


_OFFSET = 128  # added to a weight's codes
_STEP_BYTES = QUADS * quads.QUAD_BYTES
_CACHED_WORDS = 1 << 18  # of a weight that stays in L2
CACHED_ROWS = 24  # their part of a chunk, their sums and a panel's chunk stay in L1
_JOINED_ROWS = 48
_PARTS = 2 if quads.takes_pairs(EIGHT_BITS) else 1  # words of an input's quad
_TURNED = 16 if BLOCK > 8 else 8  # rows of codes that become columns at once
_turn = transposing(_TURNED, in_pairs=_PARTS == 2)
_unpack = quads.unpack_bytes(EIGHT_BITS, in_pairs=True)
_one, _few, _full = (
    quads.multiply_quads(EIGHT_BITS, height, quads.Finish.INTEGER)
    for height in (1, FEW_ROWS, BLOCK)
)


@kernel
def _multiply_rows(num_threads: Any, x: Any, weights: Any, epilogue: Any, out: Any) -> None:
    """Multiply rows of x with quads [num_panels, num_steps, 256], and write their scales."""
    num_panels, num_steps = weights.shape[:2]
    total = whole_blocks(x.shape[0])
    full = rows_in_full_blocks(total)
    inputs = aligned_floats(total * QUADS * num_steps * _PARTS)
    starts = np.empty(total, np.int32)
    for block in numba.prange((total + BLOCK - 1) // BLOCK):
        _round_block(x, block * BLOCK, total, num_steps, epilogue, starts, inputs)
    is_cached = weights.size <= _CACHED_WORDS
    height = CACHED_ROWS if is_cached else ROWS_AT_ONCE
    tiles = max(1, (full + height - 1) // height)
    pieces = (num_panels + PANELS_OF_TASK - 1) // PANELS_OF_TASK
    tasks = share_tasks(num_threads, tiles * pieces)
    for thread in numba.prange(num_threads):
        while True:
            task = next_task(tasks, thread)
            if task < 0:
                break
            # Weights that stay in the cache are read again for each tile of rows, others once.
            tile, piece = task // pieces, task % pieces
            if not is_cached:
                tile, piece = task % tiles, task // tiles
            row = tile * height
            rows = row, full, row + height if tile + 1 < tiles else total
            start = piece * PANELS_OF_TASK
            end = min(num_panels, start + PANELS_OF_TASK)
            _multiply_tile(inputs.ctypes.data, starts, rows, start, end, weights, epilogue, out)
    inputs[0] = np.float32(0.0)  # Numba does not track addresses


@kernel
def _gelu_mlp(
    num_threads: Any, x: Any, height: Any, width: Any, up: Any, down: Any, out: Any
) -> None:
    """Write two layers with GELU between them, `height` rows at a time.

    width: outputs of `up`. up, down: `arrays` of `Int8Quads`.
    """
    num_rows = x.shape[0]
    tiles = share_tasks(num_threads, (num_rows + height - 1) // height)
    for thread in numba.prange(num_threads):
        while True:
            tile = next_task(tiles, thread)
            if tile < 0:
                break
            first = tile * height
            last = min(num_rows, first + height)
            inner = np.empty((last - first, width), x.dtype)
            _multiply_few(x[first:last], up, inner)
            for i in range(last - first):
                gelu_row(inner[i], inner[i])
            _multiply_few(inner, down, out[first:last])


@inlined()
def _multiply_few(x: Any, layer: Any, out: Any) -> None:
    """Multiply rows that stay in the cache with all panels of a layer, in this thread."""
    weights, epilogue = layer[0], _epilogue_of(layer, whole_blocks(x.shape[0]))
    num_panels, num_steps = weights.shape[:2]
    total = whole_blocks(x.shape[0])
    full = rows_in_full_blocks(total)
    inputs = aligned_floats(total * QUADS * num_steps * _PARTS)
    starts = np.empty(total, np.int32)
    for first in range(0, total, BLOCK):
        _round_block(x, first, total, num_steps, epilogue, starts, inputs)
    rows, address = (0, full, total), inputs.ctypes.data
    _multiply_tile(address, starts, rows, 0, num_panels, weights, epilogue, out)
    inputs[0] = np.float32(0.0)  # Numba does not track addresses


@inlined()
def _multiply_tile(
    inputs: Any, starts: Any, rows: Any, start: Any, end: Any, weights: Any, epilogue: Any, out: Any
) -> None:
    """Multiply a tile of rows with panels from `start` to `end`.

    inputs: the address of all blocks. rows: first row, end of full blocks, end of rows.
    """
    row, _, stop = rows
    num_steps = weights.shape[1]
    first_sums = starts.view(np.float32)
    chunk = aligned_floats(CHUNK_STEPS * QUADS * COLUMNS * 2)
    sums = aligned_floats((stop - row) * COLUMNS)
    for panel in range(start, end):
        for i in range(row, stop):
            first = splat(first_sums[i])
            store(sums, (i - row) * COLUMNS, first)
            store(sums, (i - row) * COLUMNS + COLUMNS // 2, first)
        for step in range(0, num_steps, CHUNK_STEPS):
            steps = min(CHUNK_STEPS, num_steps - step)
            address = weights.ctypes.data + (panel * num_steps + step) * _STEP_BYTES
            if _PARTS == 2:
                for i in range(steps):
                    target = chunk.ctypes.data + 2 * i * _STEP_BYTES
                    _unpack(address + i * _STEP_BYTES, 0, 0, target)
                address = chunk.ctypes.data
            _multiply_chunk(rows, inputs, num_steps, step, steps, address, sums)
        num_rows = min(stop, out.shape[0]) - row
        write_block(sums.view(np.int32), 0, num_rows, epilogue, row, panel * COLUMNS, out)
    chunk[0], sums[0] = np.float32(0.0), np.float32(0.0)  # Numba does not track addresses


@inlined()
def _round_block(
    x: Any, first: Any, total: Any, num_steps: Any, epilogue: Any, starts: Any, inputs: Any
) -> None:
    """Write the codes of `BLOCK` rows, or of the last ones, into their blocks.

    With them the scale and shift of each row, and the number its sums start from.
    """
    num_quads = QUADS * num_steps
    width = (x.shape[1] + STEP - 1) // STEP * STEP
    codes, shifts = np.empty(_TURNED * width, np.int8), _shifts_of(epilogue)
    last = min(first + BLOCK, total)
    for i in range(first, last):
        own = codes[(i - first) * width : (i - first + 1) * width]
        if i < x.shape[0]:
            _quantize_row(x, i, own, 0, STEP, epilogue.rows, shifts)
        else:
            own[:] = np.int8(0)
    done = 0
    if block_of_row(first, total)[0] == BLOCK:
        # A column of `_TURNED` words is stored at a time, whose last ones the next overwrites.
        words, target = codes.view(np.int32), inputs[first * num_quads * _PARTS :].view(np.int32)
        while done + _TURNED < num_quads:
            _turn(words, done, width // 4, target, done * BLOCK * _PARTS, BLOCK)
            done += _TURNED
    for i in range(first, last):
        height, place = block_of_row(i, total)
        own = codes[(i - first) * width : (i - first + 1) * width]
        added = np.int32(0)
        for code in own:
            added += np.int32(code)
        starts[i] = np.int32(-_OFFSET) * added
        target = inputs[(place * num_quads + done * height) * _PARTS + i - place :]
        write_quads(own[4 * done :], num_quads - done, _PARTS, target.view(np.int32), height)


def _epilogue_of(layer: Any, num_rows: Any) -> Any:
    """Inside kernels: return the epilogue of rows, of which nothing is known yet."""
    raise NotImplementedError("only compiled code calls this")


def _shifts_of(epilogue: Any) -> Any:
    """Inside kernels: return the shifts of rows, empty for an epilogue without them."""
    raise NotImplementedError("only compiled code calls this")


@overload(_epilogue_of, strict=False)
def _overload_epilogue_of(layer: Any, num_rows: Any) -> Any:
    if len(layer) == 3:
        return lambda layer, num_rows: Scales(np.empty(num_rows, np.float32), layer[1], layer[2])
    return lambda layer, num_rows: ShiftedScales(
        np.empty(num_rows, np.float32),
        layer[1],
        layer[2],
        np.empty(num_rows, np.int32),
        layer[3],
    )


@overload(_shifts_of, strict=False)
def _overload_shifts_of(epilogue: Any) -> Any:
    if epilogue.instance_class is Scales:
        return lambda epilogue: np.empty(0, np.int32)
    return lambda epilogue: epilogue.shifts


@inlined()
def _multiply_chunk(
    rows: Any, inputs: Any, num_steps: Any, step: Any, steps: Any, weights: Any, sums: Any
) -> None:
    """Add the products of blocks with some steps of a panel, at an address, to sums.

    rows: first row, end of full blocks, end of rows.
    """
    first, full, stop = rows
    num_quads = QUADS * steps
    for column in range(0, COLUMNS, quads.BLOCK_COLUMNS):
        row = first
        while row < stop:
            height = BLOCK if row < full else min(stop - row, FEW_ROWS)
            x = inputs + 4 * _PARTS * QUADS * (row * num_steps + height * step)
            w, target = weights + 4 * column, sums.ctypes.data
            target += (row - first) * quads.NUMBER_BYTES + 4 * column
            if height == BLOCK:
                _full(x, w, num_quads, 1, 0, 0, target)
            elif height == FEW_ROWS:
                _few(x, w, num_quads, 1, 0, 0, target)
            else:
                _one(x, w, num_quads, 1, 0, 0, target)
            row += height


STEP = 64  # contiguous codes of a row
_SMALLEST = np.float32(SMALLEST)
_LARGEST_CODE, _NUM_STEPS = np.float32(LARGEST_CODE), np.float32(NUM_STEPS)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes and scale of each row; see the reference."""
    codes, scales, _ = quantized_panels(x, 1, shifts=False)
    return _unpadded(codes, x), torch.from_numpy(scales)


def shifted_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes, scale and shift of each row; see the reference."""
    codes, scales, shifts = quantized_panels(x, 1, shifts=True)
    return _unpadded(codes, x), torch.from_numpy(scales), torch.from_numpy(shifts)


def _unpadded(codes: NDArray[np.int8], x: Tensor) -> Tensor:
    rows = torch.from_numpy(codes.reshape(len(x), codes.shape[1] * STEP))
    return rows[:, : x.shape[1]].contiguous()


def quantized_panels(
    x: Tensor, panel_rows: int, *, shifts: bool
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int32]]:
    """Return codes [num_rows / panel_rows, num_columns / STEP, panel_rows, STEP], scales, shifts.

    Zeros follow the end of a row; rows beyond the last are undefined. The last is empty without
    `shifts`.
    """
    num_rows, num_columns = x.shape
    shape = (-(-num_rows // panel_rows), -(-num_columns // STEP), panel_rows, STEP)
    codes, scales = aligned_empty(shape, np.int8), np.empty(num_rows, np.float32)
    of_rows = np.empty(num_rows if shifts else 0, np.int32)
    choose_threads(x.numel())
    _quantize(as_array(x.contiguous()), codes, scales, of_rows)
    return codes, scales, of_rows


@kernel
def _quantize(x: Any, codes: Any, scales: Any, shifts: Any) -> None:
    num_steps, panel_rows = codes.shape[1:3]
    for row in numba.prange(x.shape[0]):
        first = row // panel_rows * num_steps * panel_rows + row % panel_rows
        _quantize_row(x, row, codes, first * STEP, panel_rows * STEP, scales, shifts)


@inlined()
def _quantize_row(
    x: Any, row: Any, codes: Any, target: Any, stride: Any, scales: Any, shifts: Any
) -> None:
    """Write the codes of a row, with steps `stride` apart, its scale, and its shift if asked."""
    has_shift = shifts.shape[0] > 0
    low = np.float32(0.0)
    if has_shift:
        low, high = _ends(x[row])
        size, most = high - low, _NUM_STEPS
    else:
        size, most = largest_magnitude(x[row]), _LARGEST_CODE
    is_finite = size < np.float32(np.inf)
    size = max(size, _SMALLEST) if is_finite else np.float32(np.nan)
    inverse = most / size if is_finite else np.float32(0.0)
    scales[row] = size / most
    shift = np.int32(0)
    if has_shift:
        lowest = low * inverse if is_finite else np.float32(0.0)
        shift = np.int32(np.rint(lowest)) - np.int32(LOWEST_CODE)
        shifts[row] = shift
    num_columns, rest = x.shape[1], x.shape[1] % STEP
    for step in range(num_columns // STEP):
        _write_step(x, row * num_columns + step * STEP, inverse, shift, codes, target)
        target += stride
    if rest > 0:
        last = np.zeros(STEP, np.float32)
        for k in range(rest):
            last[k] = to_float32(x[row, num_columns - rest + k])
        _write_step(last, 0, inverse, shift, codes, target)
        for k in range(rest, STEP):
            codes.ravel()[target + k] = np.int8(0)


@inlined()
def _ends(row: Any) -> Any:
    """Return the smallest and the largest number of a row and 0; not finite if one is not.

    Bits as integers, those of negative numbers turned round, have the order of the numbers, with
    infinities and NaN at the ends.
    """
    low, high = np.int32(0), np.int32(0)
    for k in range(row.shape[0]):
        bits = np.float32(to_float32(row[k])).view(np.int32)
        turned = np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        low, high = min(low, turned), max(high, turned)
    low = np.int32(low ^ ((low >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return np.int32(low).view(np.float32), np.int32(high).view(np.float32)


@inlined(fastmath=EXACT)
def _write_step(x: Any, place: Any, inverse: Any, shift: Any, codes: Any, target: Any) -> None:
    for k in range(0, STEP, 16):
        store_shifted(codes, target + k, read_lanes(x, place + k) * splat(inverse), shift)
