"""Products of int8 by AVX512-VNNI, which multiplies unsigned codes with signed ones."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, spread
from pagedrun.kernels.cpu.linears.block_epilogue import COLUMNS, Scales, write_block
from pagedrun.kernels.cpu.linears.quantize_rows import STEP, quantized_panels
from pagedrun.kernels.cpu.simd.aligned import aligned_empty
from pagedrun.kernels.cpu.simd.block_product import ROWS, block_product

_OFFSET = 128  # added to a row's codes
_multiply_block, _multiply_row = block_product(ROWS, 2), block_product(1, 2)


class Int8Words:
    """Writes `x @ (codes * scales).T + bias` to `out`.

    codes: [out_features, in_features] int8, not kept. `columns` and `bias` are as in `Scales`. Sums
    begin at what the offset of a row's codes adds to them, negated; with it, too, they fit 32 bits:
    255 * 128 * 2^16 < 2^31.
    """

    def __init__(
        self, codes: NDArray[np.int8], columns: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> None:
        num_panels, num_steps = -(-codes.shape[0] // COLUMNS), -(-codes.shape[1] // STEP)
        self._weights = aligned_empty((num_panels, num_steps * STEP // 4, COLUMNS), np.uint32)
        _pack(codes, self._weights.view(np.int8))
        self._starts = np.zeros(num_panels * COLUMNS, np.int32)
        self._starts[: codes.shape[0]] = codes.sum(axis=1, dtype=np.int32) * -_OFFSET
        self._columns, self._bias = columns, bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """x: [num_rows, in_features], out: [num_rows, out_features], of one dtype."""
        codes, scales = quantized_panels(x, 1)
        height = 1 if len(x) == 1 else -(-len(x) // ROWS) * ROWS
        rows = np.zeros((height, codes.shape[1] * STEP), np.uint8)
        unsigned = codes.view(np.uint8).reshape(len(x), rows.shape[1])
        np.bitwise_xor(unsigned, _OFFSET, out=rows[: len(x)])
        spread(self._weights.size)
        epilogue = Scales(scales, self._columns, self._bias)
        _multiply(rows, self._weights, self._starts, epilogue, as_array(out))


@kernel
def _pack(codes: Any, packed: Any) -> None:
    """Copy codes [columns, k] to rows of panels, four of each column; zeros follow the ends."""
    num_columns, num_k = codes.shape
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = 0
        for column in range(min(COLUMNS, num_columns - panel * COLUMNS)):
            source = codes[panel * COLUMNS + column]
            for k in range(num_k):
                packed[panel, k // 4, column * 4 + k % 4] = source[k]


@kernel
def _multiply(rows: Any, weights: Any, starts: Any, epilogue: Any, out: Any) -> None:
    """rows: unsigned codes; one row, or a multiple of `ROWS`."""
    num_panels, num_words = weights.shape[:2]
    for panel in numba.prange(num_panels):
        sums = np.empty(ROWS * COLUMNS, np.int32)
        place, first = panel * num_words * COLUMNS, panel * COLUMNS
        if rows.shape[0] == 1:
            sums[:COLUMNS] = starts[first : first + COLUMNS]
            _multiply_row(rows, 0, 0, 4, weights, place, COLUMNS, num_words, sums, 0, COLUMNS)
            write_block(sums, 0, 1, epilogue, 0, first, out)
            continue
        for row in range(0, rows.shape[0], ROWS):
            for i in range(ROWS):
                sums[i * COLUMNS : (i + 1) * COLUMNS] = starts[first : first + COLUMNS]
            a, stride = row * num_words * 4, num_words * 4
            _multiply_block(
                rows, a, stride, 4, weights, place, COLUMNS, num_words, sums, 0, COLUMNS
            )
            write_block(sums, 0, ROWS, epilogue, row, first, out)
