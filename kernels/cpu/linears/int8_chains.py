"""Products of int8 in float32, on any processor: sums of few enough codes are exact there."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, spread
from pagedrun.kernels.cpu.linears.block_epilogue import Scales, write_block
from pagedrun.kernels.cpu.linears.chain_linear import PANEL, pack_panels
from pagedrun.kernels.cpu.linears.quantize_rows import STEP, quantized_panels
from pagedrun.kernels.cpu.simd.aligned import aligned_empty, aligned_floats
from pagedrun.kernels.cpu.simd.block_product import ROWS, block_product

EXACT_TERMS = 1024  # 127 * 128 * 1024 < 2^24: up to there each integer is a float32
_multiply_block = block_product(ROWS, 2)


class Int8Chains:
    """Writes `x @ (codes * scales).T + bias` to `out`.

    codes: [out_features, in_features] int8, not kept. `columns` and `bias` are as in `Scales`.
    """

    def __init__(
        self, codes: NDArray[np.int8], columns: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> None:
        out_features, in_features = codes.shape
        self._weights = aligned_empty((-(-out_features // PANEL), in_features, PANEL), np.int8)
        pack_panels(codes, self._weights)
        self._columns, self._bias = columns, bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """x: [num_rows, in_features], out: [num_rows, out_features], of one dtype."""
        codes, scales = quantized_panels(x, 1)
        rows = np.zeros((-(-len(x) // ROWS) * ROWS, codes.shape[1] * STEP), np.float32)
        rows[: len(x)] = codes.reshape(len(x), rows.shape[1])
        spread(self._weights.size)
        _multiply(rows, self._weights, Scales(scales, self._columns, self._bias), as_array(out))


@kernel
def _multiply(rows: Any, weights: Any, epilogue: Any, out: Any) -> None:
    num_panels, num_k = weights.shape[:2]
    for panel in numba.prange(num_panels):
        exact, sums = aligned_floats(ROWS * PANEL), np.empty(ROWS * PANEL, np.int32)
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
                    (panel * num_k + k) * PANEL,
                    PANEL,
                    min(EXACT_TERMS, num_k - k),
                    exact,
                    0,
                    PANEL,
                )
                for i in range(ROWS * PANEL):
                    sums[i] += np.int32(exact[i])
            write_block(sums, 0, ROWS, epilogue, row, panel * PANEL, out)
