"""Linear layers in int8, weights and inputs: AMX tiles, or quads on any processor.

Sums are exact in both, so they give the same bytes. A tile holds twice as many terms as in
bfloat16.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, to_float32
from pagedrun.kernels.cpu.jit import EXACT, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.linears.amx_linear import PANEL, multiply_tiles
from pagedrun.kernels.cpu.linears.epilogue import COLUMNS, Scales, padded_bias, write_block
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
from pagedrun.kernels.cpu.simd.arrays import aligned_empty, aligned_floats
from pagedrun.kernels.cpu.simd.lanes import splat
from pagedrun.kernels.cpu.simd.words import read_lanes, store_codes
from pagedrun.kernels.kernel_set import KernelSet, has_features
from pagedrun.kernels.reference.linear import LARGEST_CODE, SMALLEST, check_in_features, int8_bytes


class Int8Amx:
    """Writes `x @ (codes * scales).T + bias` to `out`.

    codes: [out_features, in_features] int8, not kept. `columns` and `bias` are as in `Scales`.
    """

    def __init__(
        self, codes: NDArray[np.int8], columns: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> None:
        num_panels, num_steps = -(-codes.shape[0] // PANEL), -(-codes.shape[1] // STEP)
        self._weights = aligned_empty((num_panels, num_steps, 2, 16, 16), np.uint32)
        _pack_tiles(codes, self._weights.view(np.int8))
        self._columns, self._bias = columns, bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Map x [num_rows, in_features] to out [num_rows, out_features], of the same dtype."""
        codes, scales = quantized_panels(x, PANEL)
        # In the layout of bfloat16 tiles: those of a step, of 16 rows each, one after the other.
        rows = codes.view(np.uint16).reshape(*codes.shape[:2], 2, 16, STEP // 2)
        choose_threads(self._weights.size)
        epilogue = Scales(scales, self._columns, self._bias)
        multiply_tiles(rows, self._weights, epilogue, as_array(out))


class Int8Quads:
    """Writes `x @ (codes * scales).T + bias` to `out`, on any processor; see `quads`.

    codes: [out_features, in_features] int8, not kept. `columns` and `bias` are as in `Scales`. Sums
    start at the negated contribution of the offset of codes; they fit 32 bits: 255 * 127 * 2^16 <
    2^31.
    """

    def __init__(
        self, codes: NDArray[np.int8], columns: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> None:
        steps = -(-codes.shape[0] // COLUMNS), -(-codes.shape[1] // _QUAD_STEP)
        self._weights = aligned_empty((*steps, QUADS * COLUMNS), np.uint32)
        choose_threads(codes.size)
        nothing = np.empty((*steps, 0), np.uint32)
        pack_quads(codes.view(np.uint8), 8, _OFFSET, self._weights, nothing)
        self._columns, self._bias = columns, bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Map x [num_rows, in_features] to out [num_rows, out_features], of the same dtype."""
        if len(x) == 0:
            return
        epilogue = Scales(np.empty(len(x), np.float32), self._columns, self._bias)
        choose_threads(self._weights.size)
        _multiply_rows(as_array(x.contiguous()), self._weights, epilogue, as_array(out))


Products = Int8Amx | Int8Quads


class Int8Linear:
    """`y = x @ (codes * scales).T + bias`, with quantized rows of x; see the reference.

    Codes are packed, and not kept. Sums are exact, so all `products` give the same bytes. None: the
    fastest of `kernel_set`, of which None is the processor's best.
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
    ) -> None:
        self.out_features, self.in_features = codes.shape
        check_in_features(self.in_features)
        self.num_bytes = int8_bytes(codes, scales, bias)
        num_columns = -(-self.out_features // COLUMNS) * COLUMNS
        columns = np.zeros(num_columns, np.float32)
        columns[: self.out_features] = scales.numpy()
        multiply = products or _fastest_products(KernelSet.usable(kernel_set))
        self._multiply = multiply(
            codes.contiguous().numpy(), columns, padded_bias(bias, num_columns)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        self._multiply(x, out)
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
_PARTS = 2 if quads.takes_pairs(EIGHT_BITS) else 1  # words of an input's quad
_unpack = quads.unpack_bytes(EIGHT_BITS, in_pairs=True)
_one, _few, _full = (
    quads.multiply_quads(EIGHT_BITS, height, quads.Finish.INTEGER)
    for height in (1, FEW_ROWS, BLOCK)
)


@kernel
def _multiply_rows(x: Any, weights: Any, epilogue: Any, out: Any) -> None:
    """Multiply rows of x with quads [num_panels, num_steps, 256], and write their scales."""
    num_panels, num_steps = weights.shape[:2]
    total = whole_blocks(x.shape[0])
    full = rows_in_full_blocks(total)
    num_quads = QUADS * num_steps
    inputs = aligned_floats(total * num_quads * _PARTS).view(np.int32)
    starts = np.zeros(total, np.int32)
    for i in numba.prange(total):
        _quantize_to_block(x, i, total, num_quads, epilogue.rows, starts, inputs)
    for task in numba.prange((num_panels + PANELS_OF_TASK - 1) // PANELS_OF_TASK):
        start = task * PANELS_OF_TASK
        chunk = aligned_floats(CHUNK_STEPS * QUADS * COLUMNS * 2)
        sums = aligned_floats(min(total, ROWS_AT_ONCE + 2 * BLOCK) * COLUMNS).view(np.int32)
        for panel in range(start, min(num_panels, start + PANELS_OF_TASK)):
            row = 0
            while row < total:
                stop = row + ROWS_AT_ONCE if row + ROWS_AT_ONCE < full else total
                for i in range(row, stop):
                    for column in range(COLUMNS):
                        sums[(i - row) * COLUMNS + column] = starts[i]
                for step in range(0, num_steps, CHUNK_STEPS):
                    steps = min(CHUNK_STEPS, num_steps - step)
                    address = weights.ctypes.data + (panel * num_steps + step) * _STEP_BYTES
                    if _PARTS == 2:
                        for i in range(steps):
                            target = chunk.ctypes.data + 2 * i * _STEP_BYTES
                            _unpack(address + i * _STEP_BYTES, 0, target)
                        address = chunk.ctypes.data
                    x_address = inputs.ctypes.data
                    _multiply_chunk(
                        (row, full, stop), x_address, num_steps, step, steps, address, sums
                    )
                num_rows = min(stop, x.shape[0]) - row
                write_block(sums, 0, num_rows, epilogue, row, panel * COLUMNS, out)
                row = stop
        chunk[0], sums[0] = np.float32(0.0), np.int32(0)  # Numba does not track addresses
    inputs[0] = np.int32(0)


@inlined()
def _quantize_to_block(
    x: Any, i: Any, total: Any, num_quads: Any, scales: Any, starts: Any, inputs: Any
) -> None:
    """Write the codes of row i into its block, its scale, and the number its sums start from."""
    height, first = block_of_row(i, total)
    codes = np.zeros((x.shape[1] + STEP - 1) // STEP * STEP, np.int8)
    if i < x.shape[0]:
        scales[i] = _quantize_row(x, i, codes, 0, STEP)
    added = np.int32(0)
    for code in codes:
        added += np.int32(code)
    starts[i] = np.int32(-_OFFSET) * added
    target = inputs[first * num_quads * _PARTS + i - first :]
    write_quads(codes, num_quads, _PARTS, target, height)


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
_LARGEST_CODE = np.float32(LARGEST_CODE)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes and scale of each row; see the reference."""
    codes, scales = quantized_panels(x, 1)
    rows = torch.from_numpy(codes.reshape(len(x), codes.shape[1] * STEP))
    return rows[:, : x.shape[1]].contiguous(), torch.from_numpy(scales)


def quantized_panels(x: Tensor, panel_rows: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return codes [num_rows / panel_rows, num_columns / STEP, panel_rows, STEP], and scales.

    Zeros follow the end of a row; rows beyond the last are undefined.
    """
    num_rows, num_columns = x.shape
    shape = (-(-num_rows // panel_rows), -(-num_columns // STEP), panel_rows, STEP)
    codes, scales = aligned_empty(shape, np.int8), np.empty(num_rows, np.float32)
    choose_threads(x.numel())
    _quantize(as_array(x.contiguous()), codes, scales)
    return codes, scales


@kernel
def _quantize(x: Any, codes: Any, scales: Any) -> None:
    num_steps, panel_rows = codes.shape[1:3]
    for row in numba.prange(x.shape[0]):
        first = row // panel_rows * num_steps * panel_rows + row % panel_rows
        scales[row] = _quantize_row(x, row, codes, first * STEP, panel_rows * STEP)


@inlined()
def _quantize_row(x: Any, row: Any, codes: Any, target: Any, stride: Any) -> Any:
    """Write the codes of a row, with steps `stride` apart; return its scale."""
    num_columns, rest = x.shape[1], x.shape[1] % STEP
    largest = largest_magnitude(x[row])
    is_finite = largest < np.float32(np.inf)
    largest = max(largest, _SMALLEST) if is_finite else np.float32(np.nan)
    inverse = _LARGEST_CODE / largest if is_finite else np.float32(0.0)
    for step in range(num_columns // STEP):
        _write_step(x, row * num_columns + step * STEP, inverse, codes, target)
        target += stride
    if rest > 0:
        last = np.zeros(STEP, np.float32)
        for k in range(rest):
            last[k] = to_float32(x[row, num_columns - rest + k])
        _write_step(last, 0, inverse, codes, target)
    return largest / _LARGEST_CODE


@inlined(fastmath=EXACT)
def _write_step(x: Any, place: Any, inverse: Any, codes: Any, target: Any) -> None:
    for k in range(0, STEP, 16):
        store_codes(codes, target + k, read_lanes(x, place + k) * splat(inverse))
