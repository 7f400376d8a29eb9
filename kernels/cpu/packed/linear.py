"""QuantizedLinear: a linear layer whose weight is held in few bits."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.packed.code_arrays import PANEL
from pagedrun.kernels.cpu.packed.pair_products import PairProducts
from pagedrun.kernels.cpu.packed.tile_products import TileProducts
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.packed_weight import PackedWeight


class QuantizedLinear:
    """`y = x @ weight.T + bias` for bfloat16, to the last bit what `PackedLinear` makes of the
    dequantised weight in the same kernel set.

    weight: one that `CodeKernels.CPU` hold; not kept. bias: [out_features] bfloat16, or None.
    kernel_set: one that has these; None: the processor's best.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self, weight: PackedWeight, bias: Tensor | None = None, kernel_set: KernelSet | None = None
    ) -> None:
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)
        num_panels = -(-self.out_features // PANEL)
        added = np.zeros(0 if bias is None else num_panels * PANEL, np.float32)
        if bias is not None:
            added[: self.out_features] = bias.float().numpy()
        is_tiles = KernelSet.usable(kernel_set) is KernelSet.AMX
        self._multiply = (TileProducts if is_tiles else PairProducts)(weight, added)

    @property
    def arrays(self) -> Sequence[NDArray[np.uint8]]:
        """All that is held of the weight, layouts' padding included."""
        return self._multiply.arrays

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] bfloat16 to [num_rows, out_features] bfloat16."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        if len(x):
            self._multiply(as_array(x.contiguous()), as_array(out))
        return out
