"""GgufCheckpoint: the tensors of a GGUF file under pagedrun's names."""

from pathlib import Path

import torch

from pagedrun.paged.files.gguf import PACKED_TYPES, GgufFile, GgufTensor
from pagedrun.paged.models.checkpoint.checkpoint import BaseCheckpoint
from pagedrun.paged.models.checkpoint.gguf_architectures import architecture_of, named_tensors
from pagedrun.paged.models.checkpoint.tensors import FLOATS, StoredTensor
from pagedrun.paged.values.errors import ModelError

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufCheckpoint(BaseCheckpoint):
    """Tensors of a GGUF file; quantized ones as their blocks, [.., num_rows, row_bytes] uint8."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file.path, described_by="its metadata")
        self._file = file
        self._tensors = named_tensors(file)
        self._architecture = architecture_of(file)

    @classmethod
    def open(cls, path: Path) -> "GgufCheckpoint":
        """Map a file and its further parts; raises the `ModelError` of `GgufFile.open`."""
        return cls(GgufFile.open(path))

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._tensors)

    @property
    def files(self) -> tuple[Path, ...]:
        """The parts, in order."""
        return tuple(part.path for part in self._file.parts)

    def close(self) -> None:
        """Do nothing: tensors that were read keep the file mapped."""

    def stored(self, name: str) -> StoredTensor:
        """Return shape and dtype, or block type, of a tensor."""
        _, tensor = self._found(name)
        return StoredTensor(tensor.shape, tensor.type.name)

    def tensor(self, name: str, dtypes: tuple[str, ...] = FLOATS) -> torch.Tensor:
        """Return the numbers of a tensor, or its blocks; see `BaseCheckpoint`."""
        theirs, stored = self._found(name)
        self.check_dtype(name, dtypes)
        found = torch.from_numpy(self._file.bytes_of(theirs))
        if stored.type.name in PACKED_TYPES:
            return found.reshape(*stored.shape[:-1], -1)
        numbers = found.view(_DTYPES[stored.type.name]).reshape(stored.shape)
        if self._architecture.norm_weight_plus_one and name.endswith("norm.weight"):
            return numbers - 1
        return numbers

    def file_of(self, name: str) -> Path:
        """Return the path of the part with a tensor."""
        return self._file.path_of(self._found(name)[0])

    def _found(self, name: str) -> tuple[str, GgufTensor]:
        if name not in self._tensors:
            raise ModelError(f"{self.path}: the tensor {name} is missing; download the model again")
        return self._tensors[name]
