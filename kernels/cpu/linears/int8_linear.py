"""Linear layers in int8, weights and inputs: AMX tiles, AVX512-VNNI, or float32 on any processor.

Sums are exact in all three, so they give the same bytes. In float32, sums of up to `EXACT_TERMS`
products of codes are exact; AVX512-VNNI multiplies unsigned with signed codes; a tile holds twice
as many terms as in bfloat16.
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
from pagedrun.kernels.cpu.linears.linear import pack_panels
from pagedrun.kernels.cpu.simd.arrays import aligned_empty, aligned_floats
from pagedrun.kernels.cpu.simd.block_product import ROWS, block_product
from pagedrun.kernels.cpu.simd.lanes import splat
from pagedrun.kernels.cpu.simd.words import read_lanes, store_codes
from pagedrun.kernels.kernel_set import KernelSet, has_features
from pagedrun.kernels.reference.linear import LARGEST_CODE, SMALLEST, check_in_features, int8_bytes


class Int8Fma:
    """Writes `x @ (codes * scales).T + bias` to `out`.

    codes: [out_features, in_features] int8, not kept. `columns` and `bias` are as in `Scales`.
    """

    def __init__(
        self, codes: NDArray[np.int8], columns: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> None:
        out_features, in_features = codes.shape
        self._weights = aligned_empty((-(-out_features // COLUMNS), in_features, COLUMNS), np.int8)
        pack_panels(codes, self._weights)
        self._columns, self._bias = columns, bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Map x [num_rows, in_features] to out [num_rows, out_features], of the same dtype."""
        codes, scales = quantized_panels(x, 1)
        rows = np.zeros((-(-len(x) // ROWS) * ROWS, codes.shape[1] * STEP), np.float32)
        rows[: len(x)] = codes.reshape(len(x), rows.shape[1])
        choose_threads(self._weights.size)
        _multiply_floats(
            rows, self._weights, Scales(scales, self._columns, self._bias), as_array(out)
        )


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


class Int8Vnni:
    """Writes `x @ (codes * scales).T + bias` to `out`.

    codes: [out_features, in_features] int8, not kept. `columns` and `bias` are as in `Scales`. Sums
    start at the negated contribution of the offset of a row's codes; they fit 32 bits:
    255 * 128 * 2^16 < 2^31.
    """

    def __init__(
        self, codes: NDArray[np.int8], columns: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> None:
        num_panels, num_steps = -(-codes.shape[0] // COLUMNS), -(-codes.shape[1] // STEP)
        self._weights = aligned_empty((num_panels, num_steps * STEP // 4, COLUMNS), np.uint32)
        _pack_words(codes, self._weights.view(np.int8))
        self._starts = np.zeros(num_panels * COLUMNS, np.int32)
        self._starts[: codes.shape[0]] = codes.sum(axis=1, dtype=np.int32) * -_OFFSET
        self._columns, self._bias = columns, bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Map x [num_rows, in_features] to out [num_rows, out_features], of the same dtype."""
        codes, scales = quantized_panels(x, 1)
        height = 1 if len(x) == 1 else -(-len(x) // ROWS) * ROWS
        rows = np.zeros((height, codes.shape[1] * STEP), np.uint8)
        unsigned = codes.view(np.uint8).reshape(len(x), rows.shape[1])
        np.bitwise_xor(unsigned, _OFFSET, out=rows[: len(x)])
        choose_threads(self._weights.size)
        epilogue = Scales(scales, self._columns, self._bias)
        _multiply_words(rows, self._weights, self._starts, epilogue, as_array(out))


Products = Int8Amx | Int8Vnni | Int8Fma


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
    return Int8Vnni if has_features("avx512f", "avx512vnni") else Int8Fma


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


_OFFSET = 128  # added to a row's codes
_multiply_word_block, _multiply_word_row = block_product(ROWS, 2), block_product(1, 2)


@kernel
def _pack_words(codes: Any, packed: Any) -> None:
    """Copy codes [columns, k] to rows of panels, four of each column; zeros follow the ends."""
    num_columns, num_k = codes.shape
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = 0
        for column in range(min(COLUMNS, num_columns - panel * COLUMNS)):
            source = codes[panel * COLUMNS + column]
            for k in range(num_k):
                packed[panel, k // 4, column * 4 + k % 4] = source[k]


@kernel
def _multiply_words(rows: Any, weights: Any, starts: Any, epilogue: Any, out: Any) -> None:
    """Multiply unsigned codes `rows`: one row, or a multiple of `ROWS`."""
    num_panels, num_words = weights.shape[:2]
    for panel in numba.prange(num_panels):
        sums = np.empty(ROWS * COLUMNS, np.int32)
        place, first = panel * num_words * COLUMNS, panel * COLUMNS
        if rows.shape[0] == 1:
            sums[:COLUMNS] = starts[first : first + COLUMNS]
            _multiply_word_row(rows, 0, 0, 4, weights, place, COLUMNS, num_words, sums, 0, COLUMNS)
            write_block(sums, 0, 1, epilogue, 0, first, out)
            continue
        for row in range(0, rows.shape[0], ROWS):
            for i in range(ROWS):
                sums[i * COLUMNS : (i + 1) * COLUMNS] = starts[first : first + COLUMNS]
            a, stride = row * num_words * 4, num_words * 4
            _multiply_word_block(
                rows, a, stride, 4, weights, place, COLUMNS, num_words, sums, 0, COLUMNS
            )
            write_block(sums, 0, ROWS, epilogue, row, first, out)


EXACT_TERMS = 1024  # 127 * 128 * 1024 < 2^24, below which float32 is exact
_multiply_block = block_product(ROWS, 2)


@kernel
def _multiply_floats(rows: Any, weights: Any, epilogue: Any, out: Any) -> None:
    num_panels, num_k = weights.shape[:2]
    for panel in numba.prange(num_panels):
        exact, sums = aligned_floats(ROWS * COLUMNS), np.empty(ROWS * COLUMNS, np.int32)
        for row in range(0, rows.shape[0], ROWS):
            sums[:] = 0
            for k in range(0, num_k, EXACT_TERMS):
                exact[:] = np.float32(0.0)
                _multiply_block(
                    rows,
                    row * rows.shape[1] + k,
                    rows.shape[1],
                    1,
                    weights,
                    (panel * num_k + k) * COLUMNS,
                    COLUMNS,
                    min(EXACT_TERMS, num_k - k),
                    exact,
                    0,
                    COLUMNS,
                )
                for i in range(ROWS * COLUMNS):
                    sums[i] += np.int32(exact[i])
            write_block(sums, 0, ROWS, epilogue, row, panel * COLUMNS, out)


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
    largest = _largest_magnitude(x[row])
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


@inlined()
def _largest_magnitude(row: Any) -> Any:
    """Return the largest magnitude of a row, NaN if one is NaN.

    Bits of magnitudes, as integers, have the order of the numbers, with infinity and NaN last.
    """
    largest = np.uint32(0)
    for k in range(row.shape[0]):
        bits = np.float32(to_float32(row[k])).view(np.uint32)
        largest = max(largest, np.uint32(bits & np.uint32(0x7FFFFFFF)))
    found = np.uint32(largest)
    return found.view(np.float32)


@inlined(fastmath=EXACT)
def _write_step(x: Any, place: Any, inverse: Any, codes: Any, target: Any) -> None:
    for k in range(0, STEP, 16):
        store_codes(codes, target + k, read_lanes(x, place + k) * splat(inverse))
