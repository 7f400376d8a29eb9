"""Checkpoint: the tensors of a model folder, mapped from its safetensors files.

Only safetensors: a pickle (`.bin`, `.pth`) can run code while it is being read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pagedrun.paged.files.json_object import require_folder
from pagedrun.paged.files.safetensors_files import INDEX_FILE, open_file, weight_files
from pagedrun.paged.models.base_checkpoint import BaseCheckpoint
from pagedrun.paged.models.network.checkpoint.stored_tensors import FLOATS, StoredTensor
from pagedrun.paged.values.errors import ModelError, listed


class Checkpoint(BaseCheckpoint):
    """The tensors of a model folder by name, read when asked for. `names` holds all names.

    Built by `open`; close it, or use it in a `with` statement. The files are memory-mapped: a
    tensor costs nothing until it is touched, and must not be written to.
    """

    def __init__(self, folder: Path, files: Mapping[str, Any]) -> None:
        super().__init__(folder, described_by="config.json")
        self.folder = folder
        self._files = dict(files)  # file name -> open safetensors file
        self._file_of: dict[str, str] = {}  # tensor name -> file name
        for file_name, file in self._files.items():
            for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
                if name in self._file_of:
                    raise ModelError(
                        f"{folder}: tensor {name} is both in {self._file_of[name]} and in "
                        f"{file_name}; remove the files that do not belong to the model"
                    )
                self._file_of[name] = file_name

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(self._file_of)

    @classmethod
    def open(cls, folder: str | Path) -> "Checkpoint":
        """Map model.safetensors, else the shards of its index, else every *.safetensors file.

        Raises `ModelError` if there are none, one that the index names is missing, its name leads
        out of the folder, or a file is truncated, corrupt or a git-lfs pointer.
        """
        path = require_folder(folder)
        found = weight_files(path)
        checkpoint = cls(path, {name: open_file(path / name, "pt") for name in found.names})
        checkpoint._check_index(found.shard_of)
        return checkpoint

    def close(self) -> None:
        """Let go of the files. Tensors already handed out keep their memory mapped."""
        self._files.clear()

    @property
    def files(self) -> tuple[Path, ...]:
        """The safetensors files, sorted by name."""
        return tuple(self.folder / name for name in sorted(set(self._file_of.values())))

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype, from the header."""
        header = self._slice(name)
        return StoredTensor(tuple(header.get_shape()), header.get_dtype())

    def tensor(self, name: str, dtypes: tuple[str, ...] = FLOATS) -> torch.Tensor:
        """Return a tensor on the CPU in its stored dtype, backed by the file: do not write to it.

        Raises `ModelError` if there is none of that name or it is stored as none of `dtypes`.
        """
        self.check_dtype(name, dtypes)
        tensor: torch.Tensor = self._files[self._file_of[name]].get_tensor(name)
        return tensor

    def file_of(self, name: str) -> Path:
        """Return the file that a tensor is in."""
        return self.folder / self._file_of[name]

    def _slice(self, name: str) -> Any:
        if name not in self._file_of:
            raise ModelError(
                f"{self.folder}: the tensor {name} is missing from the safetensors files"
            )
        return self._files[self._file_of[name]].get_slice(name)

    def _check_index(self, shard_of: Mapping[str, str]) -> None:
        lost = [name for name, shard in shard_of.items() if self._file_of.get(name) != shard]
        if lost:
            raise ModelError(
                f"{self.folder / INDEX_FILE} lists tensors that are not in the file that it "
                f"names: {listed(lost)}; download the model again"
            )
