"""Linear layer on AMX tiles: bfloat16 in and out, sums in float32.

Each output is one chain of sums over k, tile by tile in ascending order. An interrupted chain
continues from its sum, which is float32 in memory as in the tile, so neither blocking nor threads
nor the number of rows changes a bit.

Layout: weights are packed once, [columns / 32, k / 32, 2, 16, 16] words of two bfloat16: a tile is
1 KiB in a row, and the two tiles of a step are adjacent. Inputs are packed at each call,
[rows / 32, k / 32, 2, 16, 32]. A step loads four tiles and computes their four products.

Limits, measured on an Emerald Rapids with one tile unit for two processors (2.5 TFLOP/s with
operands in L1). Up to 32 rows: reading the weights; prefetching four steps ahead halved the time
(6144 x 1024: 1.55 to 0.90 ms). Above some 96: loading tiles. `CHUNK_STEPS` steps of the weights
stay in L1 while the rows are read from L2; prefetching a row's next tile one step ahead, and the
next columns' weights during the first panels, gave 1.2 to 1.5 times.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import choose_threads, inlined, kernel, num_threads
from pagedrun.kernels.cpu.linears.epilogue import padded_bias, sums_for, write_block
from pagedrun.kernels.cpu.linears.panel_product import cut_panels, next_panels
from pagedrun.kernels.cpu.simd import amx
from pagedrun.kernels.cpu.simd.arrays import aligned_empty, prefetch_lines

PANEL = 32  # rows or columns of a step
STEP = 32  # terms of a sum that a step adds
CHUNK_STEPS = 16
PANELS_AT_ONCE = 16  # of rows: their part of a chunk stays in L2
COLUMN_PANELS = 4  # of a task
STEPS_AHEAD = 4
FEW_PANELS, FEW_STEPS = 3, 384  # of rows, with which they stay in L2; 1.0 to 1.2 times as fast
_WEIGHTS_STEP = PANEL * STEP // 2  # words
_ROWS_STEP = PANEL * STEP  # bfloat16
_SUMS = PANEL * PANEL

_prefetch_step = prefetch_lines(32, level=2)
_prefetch_tile_to_l2 = prefetch_lines(16, level=2)
_prefetch_half_to_l2 = prefetch_lines(8, level=2)
_prefetch_tile = prefetch_lines(16, level=1)


class AmxLinear:
    """Row-invariant `y = x @ weight.T + bias`.

    weight: [out_features, in_features] bfloat16, not kept. bias: [out_features] bfloat16 or None,
    added in float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, in_features = weight.shape
        num_steps = -(-in_features // STEP)
        num_panels = -(-self.out_features // PANEL)
        self._weights = aligned_empty((num_panels, num_steps, 2, 16, 16), np.uint32)
        _pack_weights(as_array(weight.contiguous()), self._weights)
        self._bias = padded_bias(bias, num_panels * PANEL)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] bfloat16 to [num_rows, out_features] bfloat16."""
        num_rows = len(x)
        out = torch.empty(num_rows, self.out_features, dtype=x.dtype)
        choose_threads(x.numel())
        rows = _packed_rows(as_array(x.contiguous()), self._weights.shape[1])
        choose_threads(self._weights.size)
        multiply_tiles(num_threads(), rows, self._weights, self._bias, as_array(out))
        return out


def _packed_rows(x: NDArray[np.uint16], num_steps: int) -> NDArray[np.uint16]:
    packed = aligned_empty((-(-len(x) // PANEL), num_steps, 2, 16, STEP), np.uint16)
    _pack_rows(x, packed)
    return packed


@kernel
def _pack_weights(weight: Any, packed: Any) -> None:
    """Copy weights [columns, k] uint16 to tiles of words; zeros follow the ends."""
    num_columns, num_k = weight.shape
    for panel in numba.prange(packed.shape[0]):
        packed[panel] = np.uint32(0)
        for column in range(min(PANEL, num_columns - panel * PANEL)):
            tile, place = column // 16, column % 16
            source = weight[panel * PANEL + column]
            for k in range(num_k):
                word = np.uint32(np.uint32(source[k]) << np.uint32(16 * (k % 2)))
                packed[panel, k // STEP, tile, k % STEP // 2, place] |= word


@kernel
def _pack_rows(x: Any, packed: Any) -> None:
    """Copy rows [num_rows, k] uint16 to tiles; zeros follow the end of a row.

    Padded weights are 0, which would not cancel a NaN there. Results of rows beyond the last are
    not read.
    """
    num_rows, num_k = x.shape
    whole = num_k // STEP
    for row in numba.prange(num_rows):
        panel, tile, place = row // PANEL, row % PANEL // 16, row % 16
        for step in range(whole):
            source = x[row, step * STEP : step * STEP + STEP]
            target = packed[panel, step, tile, place]
            for k in range(STEP):
                target[k] = source[k]
        if whole < packed.shape[1]:
            target = packed[panel, whole, tile, place]
            target[:] = np.uint16(0)
            for k in range(num_k - whole * STEP):
                target[k] = x[row, whole * STEP + k]


@kernel
def multiply_tiles(num_threads: Any, rows: Any, weights: Any, epilogue: Any, out: Any) -> None:
    """Multiply packed rows with packed weights, of the dtype of the `epilogue`."""
    num_panels, num_steps = weights.shape[:2]
    few = rows.shape[0] <= FEW_PANELS and rows.shape[0] * num_steps <= FEW_STEPS
    few = few or rows.shape[0] == 1
    cut = cut_panels(num_threads, 1, num_panels, num_panels if few else COLUMN_PANELS)
    for thread in numba.prange(num_threads):
        amx.configure(amx.FULL_TILES)
        while True:
            _weight, first, last = next_panels(cut, thread)
            if first == last:
                break
            if few:
                _multiply_few_panels(rows, weights, epilogue, first, last, out)
                continue
            for panel in range(0, rows.shape[0], PANELS_AT_ONCE):
                end = min(rows.shape[0], panel + PANELS_AT_ONCE)
                _multiply_panels(rows, weights, epilogue, first, last, panel, end, out)
        amx.release()


@inlined()
def _multiply_few_panels(
    rows: Any, weights: Any, epilogue: Any, first: Any, last: Any, out: Any
) -> None:
    """Multiply all rows with columns of panels first .. last - 1, bound by reading weights.

    The first panel of rows waits for a column's weights, the others read them from L2. Each panel
    prefetches its share of the next weights, so that memory is never idle.
    """
    num_steps, num_panels = weights.shape[1], rows.shape[0]
    sums = sums_for(epilogue, _SUMS)
    shares = min(num_panels, 2)
    ahead = (num_steps - num_steps // shares + STEPS_AHEAD) * _WEIGHTS_STEP
    for column in range(first, last):
        for panel in range(num_panels):
            w, r = column * num_steps * _WEIGHTS_STEP, panel * num_steps * _ROWS_STEP
            prefetched = w + panel * num_steps * (_WEIGHTS_STEP // shares) + ahead
            amx.zero_00()
            amx.zero_01()
            if out.shape[0] - panel * PANEL > 16:
                amx.zero_10()
                amx.zero_11()
                for _ in range(num_steps):
                    amx.load_b0(weights, w, 64)
                    amx.load_a0(rows, r, 64)
                    amx.load_b1(weights, w + 256, 64)
                    amx.load_a1(rows, r + 512, 64)
                    if shares == 1:
                        _prefetch_step(weights, prefetched)
                    else:
                        _prefetch_tile_to_l2(weights, prefetched)
                    amx.dot_00(sums)
                    amx.dot_01(sums)
                    amx.dot_10(sums)
                    amx.dot_11(sums)
                    w += _WEIGHTS_STEP
                    r += _ROWS_STEP
                    prefetched += _WEIGHTS_STEP // shares
                amx.store_10(sums, 512, 128)
                amx.store_11(sums, 528, 128)
            else:
                for _ in range(num_steps):
                    amx.load_b0(weights, w, 64)
                    amx.load_a0(rows, r, 64)
                    amx.load_b1(weights, w + 256, 64)
                    if shares == 1:
                        _prefetch_step(weights, prefetched)
                    else:
                        _prefetch_tile_to_l2(weights, prefetched)
                    amx.dot_00(sums)
                    amx.dot_01(sums)
                    w += _WEIGHTS_STEP
                    r += _ROWS_STEP
                    prefetched += _WEIGHTS_STEP // shares
            amx.store_00(sums, 0, 128)
            amx.store_01(sums, 16, 128)
            write_block(sums, 0, PANEL, epilogue, panel * PANEL, column * PANEL, out)


@inlined()
def _multiply_panels(
    rows: Any, weights: Any, epilogue: Any, first: Any, last: Any, panel: Any, end: Any, out: Any
) -> None:
    """Multiply panels `panel` .. end - 1 of rows with panels first .. last - 1 of columns."""
    num_steps, num_panels = weights.shape[1], end - panel
    sums = sums_for(epilogue, (last - first) * num_panels * _SUMS)
    for start in range(0, num_steps, CHUNK_STEPS):
        stop = min(num_steps, start + CHUNK_STEPS)
        for column in range(first, last):
            chunk = (column * num_steps + start) * _WEIGHTS_STEP
            for i in range(num_panels):
                place = ((column - first) * num_panels + i) * _SUMS
                if start == 0:
                    amx.zero_sums()
                else:
                    amx.load_sums(sums, place)
                w, r = chunk, ((panel + i) * num_steps + start) * _ROWS_STEP
                for _ in range(stop - start):
                    amx.load_b0(weights, w, 64)
                    amx.load_a0(rows, r, 64)
                    amx.load_b1(weights, w + 256, 64)
                    amx.load_a1(rows, r + 512, 64)
                    amx.dot_00(sums)
                    # The same chunk of the next columns, spread over the first panels of rows.
                    if i < 4:
                        _prefetch_half_to_l2(weights, w + num_steps * _WEIGHTS_STEP + i * 128)
                    _prefetch_tile(rows, r + _ROWS_STEP)
                    amx.dot_01(sums)
                    amx.dot_10(sums)
                    _prefetch_tile(rows, r + _ROWS_STEP + 512)
                    amx.dot_11(sums)
                    w += _WEIGHTS_STEP
                    r += _ROWS_STEP
                amx.store_sums(sums, place)
    for i in range(num_panels):
        for column in range(first, last):
            place = ((column - first) * num_panels + i) * _SUMS
            write_block(sums, place, PANEL, epilogue, (panel + i) * PANEL, column * PANEL, out)
