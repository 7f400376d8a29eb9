"""What happens to a block of sums before it is written: bias, and rounding."""

from typing import Any

from pagedrun.kernels.cpu.bfloat16 import from_float32
from pagedrun.kernels.cpu.jit import part
from pagedrun.kernels.cpu.simd.lanes import load
from pagedrun.kernels.cpu.simd.words import write_lanes

COLUMNS = 32
_LANES = 16


@part()
def write_block(
    sums: Any, place: Any, num_rows: Any, bias: Any, row: Any, column: Any, out: Any
) -> None:
    """Write sums [num_rows, 32], from `place` on, to `out` from (row, column) on.

    What lies beyond the last row or column of `out` is left out. bias: [at least column + 32]
    float32, or empty.
    """
    width = out.shape[1]
    for i in range(min(num_rows, out.shape[0] - row)):
        start, target = place + i * COLUMNS, (row + i) * width + column
        if column + COLUMNS <= width:
            low, high = load(sums, start), load(sums, start + _LANES)
            if bias.shape[0] > 0:
                low, high = low + load(bias, column), high + load(bias, column + _LANES)
            write_lanes(out, target, low)
            write_lanes(out, target + _LANES, high)
        else:
            for j in range(width - column):
                value = sums[start + j]
                if bias.shape[0] > 0:
                    value += bias[column + j]
                out[row + i, column + j] = from_float32(value, out)
