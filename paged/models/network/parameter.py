"""Parameter: one tensor of a checkpoint."""

import math
from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a tensor is for, which decides what replaces it where there is no checkpoint."""

    MATRIX = "matrix"
    BIAS = "bias"
    NORM = "norm"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that a model reads, by its name in the checkpoint."""

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def num_values(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)
