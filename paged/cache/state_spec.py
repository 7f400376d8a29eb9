"""StateSpec: what a recurrent layer keeps of each sequence; knows no torch."""

import math
from dataclasses import dataclass

from pagedrun.paged.values.precision import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class StateArray:
    """Numbers of one kind: their name, their shape, and their dtype by torch's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of them."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The arrays of one slot in one layer: all that it knows of the tokens of a sequence.

    Behind any token they say everything that the next one needs, and they do not grow.
    """

    arrays: tuple[StateArray, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of a slot in this layer."""
        return sum(array.num_bytes for array in self.arrays)
