"""Checkpoints: tensors of a model by name, mapped from safetensors files.

`BaseCheckpoint` is the interface of all file formats; `Checkpoint` reads folders of safetensors.
A pickle (`.bin`, `.pth`) is never read: it can run code while it is being loaded.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from pagedrun.paged.files.json_object import require_folder
from pagedrun.paged.models.checkpoint.safetensors_files import INDEX_FILE, open_file, weight_files
from pagedrun.paged.models.checkpoint.tensors import FLOATS, StoredTensor
from pagedrun.paged.values.errors import ModelError, listed


class BaseCheckpoint(ABC):
    """Tensors are read when asked for. Close it, or use it in a `with` statement.

    `path` is the model's folder or file, `described_by` what says which tensors there must be.
    """

    def __init__(self, path: Path, described_by: str) -> None:
        self.path = path
        self._described_by = described_by

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def names(self) -> frozenset[str]:
        """All names."""

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors, in a fixed order."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. Tensors already returned keep their memory mapped."""

    @abstractmethod
    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype, from the header."""

    @abstractmethod
    def tensor(self, name: str, dtypes: tuple[str, ...] = FLOATS) -> torch.Tensor:
        """Return a tensor on the CPU as it is stored, backed by the file: do not write to it.

        Raises `ModelError` if there is none of that name or it is stored as none of `dtypes`.
        """

    @abstractmethod
    def file_of(self, name: str) -> Path:
        """Return the file that a tensor is in."""

    def check(
        self,
        expected: Mapping[str, tuple[int, ...]],
        optional: Collection[str] = (),
        dropped: tuple[str, ...] = (),
        dtypes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Check that the checkpoint holds the `expected` tensors, with those shapes, and no others.

        An unexpected tensor is ignored if its name, or the end of it after a dot, is in
        `optional`: "rotary_emb.inv_freq" passes in every layer; or if its name begins with one of
        `dropped`. `dtypes` has what a tensor may be stored as, where that is not a float. Raises
        one `ModelError` that lists the first few of what is missing, extra or misshapen, or a dtype
        that is not supported.
        """
        allowed = tuple(f".{name}" for name in optional)
        missing = sorted(expected.keys() - self.names)
        extra = sorted(
            name
            for name in self.names - expected.keys()
            if not f".{name}".endswith(allowed) and not name.startswith(dropped)
        )
        present = [name for name in expected if name in self.names]
        misshapen = [
            f"{name} is {list(self.stored(name).shape)} and must be {list(expected[name])}"
            for name in present
            if self.stored(name).shape != tuple(expected[name])
        ]
        problems = [
            f"{word}: {listed(found)}"
            for word, found in (("missing", missing), ("extra", extra), ("misshapen", misshapen))
            if found
        ]
        if problems:
            raise ModelError(
                f"{self.path}: the weights do not fit {self._described_by} "
                f"({'; '.join(problems)}); check that both come from the same model, or "
                "download it again"
            )
        for name in present:
            self.check_dtype(name, (dtypes or {}).get(name, FLOATS))

    def check_dtype(self, name: str, dtypes: tuple[str, ...]) -> None:
        """Raise `ModelError` if a tensor is stored as none of `dtypes`."""
        stored = self.stored(name).dtype
        if stored not in dtypes:
            *others, last = dtypes
            read = f"{', '.join(others)} and {last}" if others else last
            raise ModelError(
                f"{self.file_of(name)}: tensor {name} is stored as {stored}, but "
                f"pagedrun reads {read} there; use a version of the model that is not quantized"
            )


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
        """Close the files. Tensors already returned keep their memory mapped."""
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
