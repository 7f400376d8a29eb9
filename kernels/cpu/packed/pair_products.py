"""PairProducts: a weight of few bits that `vdpbf16ps` multiplies, without tiles."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import spread
from pagedrun.kernels.cpu.packed.code_arrays import STEP
from pagedrun.kernels.cpu.packed.pair_product import ROWS_AT_ONCE, Chains, multiply_pairs
from pagedrun.kernels.cpu.packed.pair_weights import FEW_ROWS, PairArrays
from pagedrun.kernels.packed_weight import PackedWeight


class PairProducts:
    """Writes `x @ weight.T + bias`; `arrays` are what is held of the weight.

    bias: float32, one for each output of all panels, or empty.
    """

    def __init__(self, weight: PackedWeight, bias: NDArray[np.float32]) -> None:
        self._codes = PairArrays(weight)
        self.arrays = self._codes.arrays
        self._chains = Chains(self._codes.chain_steps, self._codes.tables)
        self._bias = bias
        self._size = weight.codes.numel()

    def __call__(self, x: NDArray[np.uint16], out: NDArray[Any]) -> None:
        """x: bits of bfloat16 [num_rows, in_features], out: [num_rows, out_features]."""
        places = self._codes.places
        rows = _padded(x, places.num_steps * STEP)
        spread(self._size)
        multiply_pairs(rows, places, self._chains, self._bias, out)


def _padded(x: NDArray[np.uint16], num_columns: int) -> NDArray[np.uint16]:
    """Return x with zeros behind, up to whole steps and a height that blocks of six and of four
    rows have together, also what `ROWS_AT_ONCE` leave of it."""
    num_rows = len(x)
    if num_rows > 1:
        unit = 2 if FEW_ROWS < num_rows <= ROWS_AT_ONCE else FEW_ROWS
        num_rows = -(-num_rows // unit) * unit
    if x.shape == (num_rows, num_columns):
        return x
    rows = np.zeros((num_rows, num_columns), np.uint16)
    rows[: len(x), : x.shape[1]] = x
    return rows
