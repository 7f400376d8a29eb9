"""GgufCheckpoint: the tensors of a GGUF file under pagedrun's names."""

from pathlib import Path

import torch

from pagedrun.paged.files.gguf import PACKED_TYPES, GgufFile, GgufTensor
from pagedrun.paged.models.checkpoint.checkpoint import BaseCheckpoint
from pagedrun.paged.models.checkpoint.gguf_architectures import (
    ROPE_TENSORS,
    architecture_of,
    our_name,
)
from pagedrun.paged.models.checkpoint.tensors import FLOATS, StoredTensor
from pagedrun.paged.values.errors import ModelError

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufCheckpoint(BaseCheckpoint):
    """Blocks are handed out as they are: [.., num_rows, bytes of a row] uint8."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file.path, described_by="its metadata")
        self._file = file
        self._tensors = file.tensors
        self._architecture = architecture_of(file)
        self._theirs: dict[str, str] = {}
        for theirs in self._tensors:
            ours = our_name(theirs, self._architecture)
            if ours in self._theirs:
                raise ModelError(f"{file.path}: {theirs} occurs twice; download the model again")
            if theirs not in ROPE_TENSORS:
                self._theirs[ours] = theirs

    @classmethod
    def open(cls, path: Path) -> "GgufCheckpoint":
        """Map a file and its further parts; raises `ModelError` as `GgufFile.open` does."""
        return cls(GgufFile.open(path))

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(self._theirs)

    @property
    def files(self) -> tuple[Path, ...]:
        """The parts, in order."""
        return tuple(part.path for part in self._file.parts)

    def close(self) -> None:
        """Nothing to do: tensors that were handed out keep their memory mapped."""

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype, or its type of block."""
        tensor = self._tensors[self._their_name(name)]
        return StoredTensor(self._shape(name, tensor), tensor.type.name)

    def tensor(self, name: str, dtypes: tuple[str, ...] = FLOATS) -> torch.Tensor:
        """Return a tensor's numbers, or its blocks; see `BaseCheckpoint`."""
        theirs = self._their_name(name)
        self.check_dtype(name, dtypes)
        found, stored = torch.from_numpy(self._file.bytes_of(theirs)), self._tensors[theirs]
        if stored.type.name in PACKED_TYPES:
            return found.reshape(*stored.shape[:-1], -1)
        numbers = found.view(_DTYPES[stored.type.name]).reshape(self._shape(name, stored))
        if self._architecture.adds_one and name.endswith("norm.weight"):
            return numbers - 1
        return numbers

    def file_of(self, name: str) -> Path:
        """Return the part that a tensor is in."""
        return self._file.path_of(self._their_name(name))

    def _shape(self, name: str, tensor: GgufTensor) -> tuple[int, ...]:
        """Return a tensor's shape, with the axis that it has lost."""
        for end, axis in self._architecture.lost_axes.items():
            if name.endswith(end) and len(tensor.shape) > axis:
                return (*tensor.shape[:axis], 1, *tensor.shape[axis:])
        return tensor.shape

    def _their_name(self, name: str) -> str:
        if name not in self._theirs:
            raise ModelError(f"{self.path}: the tensor {name} is missing; download the model again")
        return self._theirs[name]
