"""Products of int8 on AMX tiles: those of `tile_linear`, with twice as many terms in a tile."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, spread
from pagedrun.kernels.cpu.linears.block_epilogue import Scales
from pagedrun.kernels.cpu.linears.quantize_rows import STEP, quantized_panels
from pagedrun.kernels.cpu.linears.tile_linear import PANEL, multiply_tiles
from pagedrun.kernels.cpu.simd.aligned import aligned_empty
from pagedrun.kernels.cpu.simd.amx import tile_shapes


class Int8Tiles:
    """Writes `x @ (codes * scales).T + bias` to `out`.

    codes: [out_features, in_features] int8, not kept. `columns` and `bias` are as in `Scales`.
    """

    def __init__(
        self, codes: NDArray[np.int8], columns: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> None:
        num_panels, num_steps = -(-codes.shape[0] // PANEL), -(-codes.shape[1] // STEP)
        self._weights = aligned_empty((num_panels, num_steps, 2, 16, 16), np.uint32)
        _pack(codes, self._weights.view(np.int8))
        self._columns, self._bias = columns, bias
        self._shapes = tile_shapes()

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """x: [num_rows, in_features], out: [num_rows, out_features], of one dtype."""
        codes, scales = quantized_panels(x, PANEL)
        # As bfloat16 lie in their tiles: those of a step, of 16 rows each, one behind the other.
        rows = codes.view(np.uint16).reshape(*codes.shape[:2], 2, 16, STEP // 2)
        spread(self._weights.size)
        epilogue = Scales(scales, self._columns, self._bias)
        multiply_tiles(rows, self._weights, epilogue, self._shapes, as_array(out))


@kernel
def _pack(codes: Any, packed: Any) -> None:
    """Copy codes [columns, k] to tiles [.., 16, 64], rows of which hold four codes of 16 columns.

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
