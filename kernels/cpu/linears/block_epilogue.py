"""What happens to a block of sums before it is written: bias, and rounding."""

from typing import Any

from pagedrun.kernels.cpu.bfloat16 import from_float32
from pagedrun.kernels.cpu.jit import part


@part()
def write_block(
    sums: Any, place: Any, num_rows: Any, bias: Any, row: Any, column: Any, out: Any
) -> None:
    """Write sums [num_rows, 32], from `place` on, to `out` from (row, column) on.

    bias: [at least column + 32] float32, or empty.
    """
    num_columns = min(32, out.shape[1] - column)
    for i in range(min(num_rows, out.shape[0] - row)):
        source = sums[place + i * 32 : place + i * 32 + 32]
        target = out[row + i, column : column + num_columns]
        if bias.shape[0] > 0:
            added = bias[column : column + 32]
            for j in range(num_columns):
                target[j] = from_float32(source[j] + added[j], out)
        else:
            for j in range(num_columns):
                target[j] = from_float32(source[j], out)
