"""Parameter: one tensor of a checkpoint."""

import math
from dataclasses import dataclass
from enum import Enum

from pagedrun.paged.models.network.neighbour_pairs import NeighbourPairs


class Role(Enum):
    """What a tensor is for, which decides what replaces it where there is no checkpoint."""

    MATRIX = "matrix"
    BIAS = "bias"
    NORM = "norm"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that a model reads, by its name in the checkpoint.

    `pairs`: its first axis is the elements of heads, to be put into the order that kernels turn.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    pairs: NeighbourPairs | None = None

    @property
    def num_values(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)
