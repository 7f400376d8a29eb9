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

    Behind any token they say everything that the next one needs, and they do not grow. What a
    library keeps `is_opaque`: an object for each sequence, of all layers together, which takes at
    most as much as the arrays, and `bytes_per_token` more for each token.
    """

    arrays: tuple[StateArray, ...]
    bytes_per_token: int = 0
    is_opaque: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays of a slot in this layer."""
        return sum(array.num_bytes for array in self.arrays)

    def num_bytes_behind(self, num_tokens: int) -> int:
        """Return the bytes of a slot in this layer, behind so many tokens."""
        return self.num_bytes + num_tokens * self.bytes_per_token
