"""TileProducts: a weight of few bits that AMX tiles multiply."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import spread
from pagedrun.kernels.cpu.packed.code_arrays import CodeArrays
from pagedrun.kernels.cpu.packed.input_blocks import FEW_ROWS, ROWS, input_blocks
from pagedrun.kernels.cpu.packed.tile_product import multiply_tiles
from pagedrun.kernels.cpu.simd.amx import tile_shapes
from pagedrun.kernels.packed_weight import PackedWeight


class TileProducts:
    """Writes `x @ weight.T + bias`; `arrays` are what is held of the weight.

    bias: float32, one for each output of all panels, or empty.
    """

    def __init__(self, weight: PackedWeight, bias: NDArray[np.float32]) -> None:
        self._codes = CodeArrays(weight)
        self.arrays = self._codes.arrays
        self._bias = bias
        self._size = weight.codes.numel()
        self._shapes = {rows: tile_shapes(rows) for rows in (*range(1, FEW_ROWS + 1), ROWS)}

    def __call__(self, x: NDArray[np.uint16], out: NDArray[Any]) -> None:
        """x: bits of bfloat16 [num_rows, in_features], out: [num_rows, out_features]."""
        inputs = input_blocks(x, self._codes.places.num_steps)
        spread(self._size)
        multiply_tiles(inputs, self._codes.places, self._bias, self._shapes[inputs.shape[3]], out)
