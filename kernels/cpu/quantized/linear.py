"""Linear layers of quantized weights.

In bfloat16, AMX tiles and `vdpbf16ps` multiply codes that become bfloat16 in the cache or in
registers. Everything else is multiplied in panels: exactly in float32, or with inputs rounded to
int8.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import choose_threads, num_threads, serial_kernel
from pagedrun.kernels.cpu.linears.epilogue import padded_bias
from pagedrun.kernels.cpu.linears.panel_product import RowsOfExperts, all_rows, multiply_panels
from pagedrun.kernels.cpu.quantized.amx_product import (
    NARROW_ROWS,
    ROWS,
    blocks_of_experts,
    input_blocks,
    multiply_tiles,
)
from pagedrun.kernels.cpu.quantized.code_arrays import PANEL, STEP, CodeArrays
from pagedrun.kernels.cpu.quantized.int8_product import multiply_int8
from pagedrun.kernels.cpu.quantized.int8_tiles import SumTiles, multiply_int8_tiles
from pagedrun.kernels.cpu.quantized.pair_product import (
    FEW_ROWS,
    ROWS_AT_ONCE,
    Chains,
    PairArrays,
    multiply_rows,
)
from pagedrun.kernels.cpu.quantized.panel_codes import PanelArrays
from pagedrun.kernels.cpu.recording import values_are_read
from pagedrun.kernels.cpu.simd.amx import tile_shapes
from pagedrun.kernels.kernel_set import KernelSet, has_features
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import PackedWeight, beside


class QuantizedLinear:
    """`y = x @ weight.T + bias` with a weight that stays quantized in memory.

    weight: one that kernels of `kernel_set` hold; not kept. bias: [out_features] in `dtype`, or
    None. dtype: of x and y, bfloat16 or float32. kernel_set: None is the processor's best.
    Exact products on tiles and in panels have the bits of `PackedLinear` with the dequantized
    weight. With inputs in int8, see `PanelProducts`, a row has the same bytes in every set.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self,
        weight: PackedWeight,
        bias: Tensor | None = None,
        kernel_set: KernelSet | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        activations: Activations = Activations.EXACT,
    ) -> None:
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)
        kernel_set = KernelSet.usable(kernel_set)
        rounds_inputs = weight.form.rounds_inputs(activations, kernel_set.code_kernels)
        added = padded_bias(bias, -(-self.out_features // PANEL) * PANEL)
        self._multiply: AmxProducts | PairProducts | PanelProducts
        if rounds_inputs or dtype is not torch.bfloat16 or kernel_set is KernelSet.PORTABLE:
            panels, on_tiles = PanelArrays([weight], dtype), kernel_set is KernelSet.AMX
            self._multiply = PanelProducts(panels, added, rounds_inputs, on_tiles)
        elif kernel_set is KernelSet.AMX:
            self._multiply = AmxProducts(CodeArrays(weight), added)
        else:
            self._multiply = PairProducts(weight, added)

    @property
    def arrays(self) -> Sequence[NDArray[np.uint8]]:
        """Arrays of the packed weight, with padding."""
        return self._multiply.arrays

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] to [num_rows, out_features], in the same dtype."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        if len(x):
            self._multiply(as_array(x.contiguous()), as_array(out))
        return out


class QuantizedExperts:
    """Linear layers of many experts, quantized in memory; implements `GroupedLinear`.

    weights: parts whose outputs lie side by side, each with a weight for every expert, all of one
    form; not kept. bias: [num_experts, out_features] in `dtype`, or None. Other arguments as for
    `QuantizedLinear`. Exact products in bfloat16 are on tiles or in panels.
    """

    row_invariant = True

    def __init__(
        self,
        weights: Sequence[Sequence[PackedWeight]],
        bias: Tensor | None,
        kernel_set: KernelSet,
        *,
        dtype: torch.dtype,
        activations: Activations,
    ) -> None:
        self.num_experts, first = len(weights[0]), weights[0][0]
        self.in_features = first.in_features
        self.out_features = sum(part[0].out_features for part in weights)
        self.num_bytes = sum(each.num_bytes for part in weights for each in part)
        self.num_bytes += 0 if bias is None else bias.nbytes
        added = np.empty(0, np.float32)
        if bias is not None:
            padded = functional.pad(bias.float(), (0, -self.out_features % PANEL))
            added = padded.numpy().reshape(-1)
        experts = (beside(of_expert) for of_expert in zip(*weights, strict=True))
        rounds_inputs = first.form.rounds_inputs(activations, kernel_set.code_kernels.of_experts)
        on_tiles = kernel_set is KernelSet.AMX
        self._multiply: AmxProducts | PanelProducts
        if on_tiles and not rounds_inputs and dtype is torch.bfloat16:
            self._multiply = AmxProducts(CodeArrays.of_experts(experts, self.num_experts), added)
        else:
            panels = PanelArrays(experts, dtype, num_weights=self.num_experts)
            self._multiply = PanelProducts(panels, added, rounds_inputs, on_tiles)

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x."""
        values_are_read()
        num_rows = len(x if tokens is None else tokens)
        out = torch.empty(num_rows, self.out_features, dtype=x.dtype)
        if num_rows:
            chosen = starts.numpy(), None if tokens is None else tokens.numpy()
            self._multiply(as_array(x.contiguous()), as_array(out), chosen)
        return out

    def arrays_of(self, expert: int) -> list[NDArray[np.uint8]]:
        """See `OfExperts`."""
        return [each[expert] for each in self._multiply.arrays]


# Where the rows of each expert start, and the row of x that each reads; see `GroupedLinear`.
Chosen = tuple[NDArray[np.int64], NDArray[np.int64] | None]


class PanelProducts:
    """Product `x @ weight.T + bias`, in float32 or with inputs rounded to int8.

    bias: float32, one for each output of all panels, or empty. on_tiles: rows rounded to int8 are
    multiplied on AMX tiles where that is faster, with the same bytes.
    """

    def __init__(
        self, weights: PanelArrays, bias: NDArray[np.float32], rounds_inputs: bool, on_tiles: bool
    ) -> None:
        self.arrays = weights.arrays
        self._weights, self._bias, self._rounds_inputs = weights, bias, rounds_inputs
        self._tiles = None
        if on_tiles and rounds_inputs and has_features("amx-int8"):
            self._tiles = SumTiles.of(weights.sum_size)

    def __call__(self, x: NDArray[Any], out: NDArray[Any], chosen: Chosen | None = None) -> None:
        """Write the product to out [num_rows, out_features]. chosen: None for a single weight."""
        rows = all_rows(len(x)) if chosen is None else RowsOfExperts.of(*chosen)
        choose_threads(len(rows.segments) * x.shape[1] * out.shape[1])
        codes, sum_size, threads = self._weights.codes, self._weights.sum_size, num_threads()
        if self._tiles is not None and len(out) >= self._tiles.min_rows * len(rows.segments):
            tiles = self._tiles[:2]
            multiply_int8_tiles(threads, x, rows, codes, sum_size, self._bias, *tiles, out)
        elif self._rounds_inputs:
            multiply_int8(threads, x, rows, codes, sum_size, self._bias, out)
        else:
            multiply_panels(threads, x, rows, codes, self._bias, out)


class AmxProducts:
    """Product `x @ weight.T + bias`; `arrays` is the packed weight, or those of experts.

    bias: float32, one for each output of all panels, or empty.
    """

    def __init__(self, codes: CodeArrays, bias: NDArray[np.float32]) -> None:
        self._codes, self._bias = codes, bias
        self.arrays = codes.arrays
        self._shapes = {rows: tile_shapes(rows) for rows in (*range(1, NARROW_ROWS + 1), ROWS)}

    def __call__(
        self, x: NDArray[np.uint16], out: NDArray[Any], chosen: Chosen | None = None
    ) -> None:
        """Write the product to out [num_rows, out_features]. x: bfloat16 bits."""
        if chosen is None:
            inputs = input_blocks(x, self._codes.places.num_steps)
            segments = all_rows(len(x)).segments
        else:
            inputs, segments = blocks_of_experts(x, *chosen)
        choose_threads(len(segments) * x.shape[1] * out.shape[1])
        shapes = self._shapes[inputs.shape[3]]
        places = self._codes.places
        multiply_tiles(num_threads(), inputs, segments, places, self._bias, shapes, out)


class PairProducts:
    """Product `x @ weight.T + bias`; `arrays` is the packed weight.

    bias: float32, one for each output of all panels, or empty.
    """

    def __init__(self, weight: PackedWeight, bias: NDArray[np.float32]) -> None:
        self._codes = PairArrays(weight)
        self.arrays = self._codes.arrays
        self._chains = Chains(self._codes.chain_steps, self._codes.tables)
        self._bias = bias
        self._size = weight.out_features * weight.in_features

    def __call__(self, x: NDArray[np.uint16], out: NDArray[Any]) -> None:
        """Write the product to out [num_rows, out_features]. x: bfloat16 bits."""
        places = self._codes.places
        rows = _padded(x, places.num_steps * STEP)
        choose_threads(self._size)
        multiply_rows(num_threads(), rows, places, self._chains, self._bias, out)


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
    rows = np.empty((num_rows, num_columns), np.uint16)
    _copy_padded(x, rows)
    return rows


@serial_kernel
def _copy_padded(x: Any, rows: Any) -> None:
    for i in range(rows.shape[0]):
        num_k = x.shape[1] if i < x.shape[0] else 0
        for k in range(num_k):
            rows[i, k] = x[i, k]
        for k in range(num_k, rows.shape[1]):
            rows[i, k] = np.uint16(0)
