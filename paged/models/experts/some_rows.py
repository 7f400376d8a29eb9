"""Some rows of an expert's matrix, however it is held."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight


def rows_between(
    matrix: "PackedWeight | Tensor", start: int, end: int, step: int = 1
) -> "PackedWeight | Tensor":
    """Return each `step`-th row from start to end, as a view where it is plain."""
    from torch import Tensor

    if isinstance(matrix, Tensor):
        return matrix[start:end:step]
    return matrix.between(start, end, step)
