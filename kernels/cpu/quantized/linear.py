"""Linear layers of quantized weights, multiplied on AMX tiles or by `vdpbf16ps`.

Codes become bfloat16 in the cache or in registers, a few at a time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import choose_threads
from pagedrun.kernels.cpu.linears.epilogue import padded_bias
from pagedrun.kernels.cpu.quantized.amx_product import (
    NARROW_ROWS,
    ROWS,
    input_blocks,
    multiply_tiles,
)
from pagedrun.kernels.cpu.quantized.code_arrays import PANEL, STEP, CodeArrays
from pagedrun.kernels.cpu.quantized.pair_product import (
    FEW_ROWS,
    ROWS_AT_ONCE,
    Chains,
    PairArrays,
    multiply_rows,
)
from pagedrun.kernels.cpu.simd.amx import tile_shapes
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_weight import PackedWeight


class QuantizedLinear:
    """`y = x @ weight.T + bias` in bfloat16, with the bits of `PackedLinear` of the same weight.

    weight: one supported by `CodeKernels.CPU`; not kept. bias: [out_features] bfloat16, or None.
    kernel_set: one that has these; None: the processor's best.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self, weight: PackedWeight, bias: Tensor | None = None, kernel_set: KernelSet | None = None
    ) -> None:
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)
        added = padded_bias(bias, -(-self.out_features // PANEL) * PANEL)
        is_tiles = KernelSet.usable(kernel_set) is KernelSet.AMX
        self._multiply = (AmxProducts if is_tiles else PairProducts)(weight, added)

    @property
    def arrays(self) -> Sequence[NDArray[np.uint8]]:
        """Arrays of the packed weight, with padding."""
        return self._multiply.arrays

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] bfloat16 to [num_rows, out_features] bfloat16."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        if len(x):
            self._multiply(as_array(x.contiguous()), as_array(out))
        return out


class AmxProducts:
    """Product `x @ weight.T + bias`; `arrays` is the packed weight.

    bias: float32, one for each output of all panels, or empty.
    """

    def __init__(self, weight: PackedWeight, bias: NDArray[np.float32]) -> None:
        self._codes = CodeArrays(weight)
        self.arrays = self._codes.arrays
        self._bias = bias
        self._size = weight.codes.numel()
        self._shapes = {rows: tile_shapes(rows) for rows in (*range(1, NARROW_ROWS + 1), ROWS)}

    def __call__(self, x: NDArray[np.uint16], out: NDArray[Any]) -> None:
        """Write the product to out [num_rows, out_features]. x: bfloat16 bits."""
        inputs = input_blocks(x, self._codes.places.num_steps)
        choose_threads(self._size)
        multiply_tiles(inputs, self._codes.places, self._bias, self._shapes[inputs.shape[3]], out)


class PairProducts:
    """Product `x @ weight.T + bias`; `arrays` is the packed weight.

    bias: float32, one for each output of all panels, or empty.
    """

    def __init__(self, weight: PackedWeight, bias: NDArray[np.float32]) -> None:
        self._codes = PairArrays(weight)
        self.arrays = self._codes.arrays
        self._chains = Chains(self._codes.chain_steps, self._codes.tables)
        self._bias = bias
        self._size = weight.codes.numel()

    def __call__(self, x: NDArray[np.uint16], out: NDArray[Any]) -> None:
        """Write the product to out [num_rows, out_features]. x: bfloat16 bits."""
        places = self._codes.places
        rows = _padded(x, places.num_steps * STEP)
        choose_threads(self._size)
        multiply_rows(rows, places, self._chains, self._bias, out)


def _padded(x: NDArray[np.uint16], num_columns: int) -> NDArray[np.uint16]:
    """Return x, zero-padded to whole steps and to a height of whole blocks of six and four rows.

    The same holds for the rest after batches of `ROWS_AT_ONCE`.
    """
    num_rows = len(x)
    if num_rows > 1:
        unit = 2 if FEW_ROWS < num_rows <= ROWS_AT_ONCE else FEW_ROWS
        num_rows = -(-num_rows // unit) * unit
    if x.shape == (num_rows, num_columns):
        return x
    rows = np.zeros((num_rows, num_columns), np.uint16)
    rows[: len(x), : x.shape[1]] = x
    return rows
