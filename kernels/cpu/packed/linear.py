"""QuantizedLinear: a linear layer whose weight is held in few bits."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import spread
from pagedrun.kernels.cpu.packed.code_arrays import PANEL, CodeArrays
from pagedrun.kernels.cpu.packed.input_blocks import FEW_ROWS, ROWS, input_blocks
from pagedrun.kernels.cpu.packed.tile_product import multiply_tiles
from pagedrun.kernels.cpu.simd.amx import tile_shapes
from pagedrun.kernels.packed_weight import PackedWeight


class QuantizedLinear:
    """`y = x @ weight.T + bias` for bfloat16, to the last bit what `TileLinear` makes of the
    dequantised weight.

    weight: one whose form `can_be_held`; not kept. bias: [out_features] bfloat16, or None.
    """

    is_packed = True
    row_invariant = True

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)
        self._codes = CodeArrays(weight)
        num_panels = -(-self.out_features // PANEL)
        self._bias = np.zeros(0 if bias is None else num_panels * PANEL, np.float32)
        if bias is not None:
            self._bias[: self.out_features] = bias.float().numpy()
        self._shapes = {rows: tile_shapes(rows) for rows in (*range(1, FEW_ROWS + 1), ROWS)}

    @property
    def arrays(self) -> Sequence[NDArray[np.uint8]]:
        """All that is held of the weight, layouts' padding included."""
        return self._codes.arrays

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] bfloat16 to [num_rows, out_features] bfloat16."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        if not len(x):
            return out
        inputs = input_blocks(as_array(x.contiguous()), self._codes.places.num_steps)
        spread(self.out_features * self.in_features)
        shapes = self._shapes[inputs.shape[3]]
        multiply_tiles(inputs, self._codes.places, self._bias, shapes, as_array(out))
        return out
