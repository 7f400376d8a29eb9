"""StoredTensors: what the header of a checkpoint says of its tensors."""

from dataclasses import dataclass
from typing import Protocol

# The names of safetensors for what a tensor's numbers may be stored as.
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's shape, and the name of safetensors for its dtype, such as "F8_E4M3"."""

    shape: tuple[int, ...]
    dtype: str


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
