"""Parameter: one tensor of a checkpoint."""

import math
from dataclasses import dataclass
from enum import Enum

from pagedrun.paged.models.network.checkpoint.row_order import RowOrder
from pagedrun.paged.models.network.checkpoint.stored_tensors import FLOATS


class Role(Enum):
    """What a tensor is for, which decides what replaces it where there is no checkpoint."""

    MATRIX = "matrix"
    BIAS = "bias"
    NORM = "norm"
    SCALE = "scale"
    QUANTIZED = "quantized"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that a model reads, by its name in the checkpoint.

    `order`: what its first axis is to be brought into.
    `dtypes`: what it may be stored as, by the names of safetensors.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    order: RowOrder | None = None
    dtypes: tuple[str, ...] = FLOATS

    @property
    def num_values(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)
