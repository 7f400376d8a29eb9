"""StoredTensors: what the header of a checkpoint says of its tensors."""

import math
from dataclasses import dataclass
from typing import Protocol

from pagedrun.paged.files.gguf.block_type import BLOCK_TYPES

# The names of safetensors for what a tensor's numbers may be stored as.
FLOATS = ("F32", "F16", "BF16")
# Bytes of a number in dtypes that are no block of GGUF's and have not one.
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
_BLOCKS = {each.name: each for each in BLOCK_TYPES.values()}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's shape, and the name of safetensors for its dtype, such as "F8_E4M3"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes in its file."""
        num_values, block = math.prod(self.shape), _BLOCKS.get(self.dtype)
        if block is not None:
            return num_values // block.num_weights * block.num_bytes
        return num_values * _BYTES.get(self.dtype, 1)


def number_bytes(stored: "StoredTensors", name: str) -> int:
    """Return the bytes that a number of a tensor's dtype has once it is read, 4 for odd ones."""
    tensor = stored.get(name)
    return 2 if tensor is not None and tensor.dtype in ("F16", "BF16") else 4


class StoredTensors(Protocol):
    """A checkpoint's tensors, by the names of a network's parameters."""

    def get(self, name: str) -> StoredTensor | None:
        """Return what is stored under a name, None for nothing."""
        ...


class _Nothing:
    def get(self, name: str) -> StoredTensor | None:
        return None


# Where there is no checkpoint, or none has been opened yet.
NOTHING_STORED: StoredTensors = _Nothing()
