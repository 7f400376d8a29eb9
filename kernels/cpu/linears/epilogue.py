"""Epilogue of a block of sums: scales, bias, rounding and writing."""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import from_float32
from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd.arrays import aligned_floats
from pagedrun.kernels.cpu.simd.lanes import load, splat, store
from pagedrun.kernels.cpu.simd.words import load_shifted, read_lanes, write_lanes

COLUMNS = 32
_LANES = 16


class Scales(NamedTuple):
    """Scales of int32 sums of products of codes, and a bias added after scaling.

    rows: [num_rows] float32. columns, bias: [all columns of the last block] float32; bias may be
    empty.
    """

    rows: Any
    columns: Any
    bias: Any


class ShiftedScales(NamedTuple):
    """`Scales` of sums with codes of rows to which a shift is to be added.

    shifts: [num_rows] int32. column_sums: [columns] int32, the sums of a column's codes.
    """

    rows: Any
    columns: Any
    bias: Any
    shifts: Any
    column_sums: Any


def padded_bias(bias: Tensor | None, num_columns: int) -> NDArray[np.float32]:
    """Return a bias as float32 with zeros up to `num_columns`; empty for None."""
    if bias is None:
        return np.empty(0, np.float32)
    padded = np.zeros(num_columns, np.float32)
    padded[: len(bias)] = bias.float().numpy()
    return padded


@inlined()
def write_block(
    sums: Any, place: Any, num_rows: Any, epilogue: Any, row: Any, column: Any, out: Any
) -> None:
    """Write sums [num_rows, 32], from `place` on, to `out` from (row, column) on.

    Sums beyond the last row or column of `out` are skipped. epilogue: `Scales` for int32 sums;
    for float32 sums a bias, [at least column + 32] float32, or empty.
    """
    width, last = out.shape[1], min(num_rows, out.shape[0] - row)
    if column + COLUMNS <= width:
        for i in range(last):
            start, target = place + i * COLUMNS, (row + i) * width + column
            low = _finished(sums, start, epilogue, row + i, column)
            high = _finished(sums, start + _LANES, epilogue, row + i, column + _LANES)
            write_lanes(out, target, low)
            write_lanes(out, target + _LANES, high)
        return
    values = sums.view(np.float32)
    for i in range(last):
        start = place + i * COLUMNS
        low = _finished(sums, start, epilogue, row + i, column)
        high = _finished(sums, start + _LANES, epilogue, row + i, column + _LANES)
        store(values, start, low)
        store(values, start + _LANES, high)
        for j in range(width - column):
            out[row + i, column + j] = from_float32(values[start + j], out)


def sums_for(epilogue: Any, size: Any) -> Any:
    """Inside kernels: return uninitialized memory for the sums of an epilogue."""
    raise NotImplementedError("only compiled code calls this")


def _finished(sums: Any, start: Any, epilogue: Any, row: Any, column: Any) -> Any:
    """Inside kernels: return sixteen finished sums from `start` on, as Lanes."""
    raise NotImplementedError("only compiled code calls this")


@overload(sums_for, strict=False)
def _overload_sums_for(epilogue: Any, size: Any) -> Any:
    if isinstance(epilogue, types.BaseNamedTuple):
        return lambda epilogue, size: aligned_floats(size).view(np.int32)
    return lambda epilogue, size: aligned_floats(size)


@overload(_finished, strict=False)
def _overload_finished(sums: Any, start: Any, epilogue: Any, row: Any, column: Any) -> Any:
    if not isinstance(epilogue, types.BaseNamedTuple):
        return lambda sums, start, epilogue, row, column: _with_bias(
            load(sums, start), epilogue, column
        )
    if epilogue.instance_class is Scales:
        return lambda sums, start, epilogue, row, column: _scaled(
            read_lanes(sums, start), epilogue, row, column
        )
    return lambda sums, start, epilogue, row, column: _scaled(
        load_shifted(sums, start, epilogue.shifts[row], epilogue.column_sums, column),
        epilogue,
        row,
        column,
    )


@inlined(fastmath=EXACT)
def _scaled(value: Any, scales: Any, row: Any, column: Any) -> Any:
    """Scale sums and add the bias, rounded twice (no fma) on every processor."""
    factors = splat(scales.rows[row]) * load(scales.columns, column)
    return _with_bias(value * factors, scales.bias, column)


@inlined(fastmath=EXACT)
def _with_bias(value: Any, bias: Any, column: Any) -> Any:
    return value + load(bias, column) if bias.shape[0] > 0 else value
