"""Checkpoint: the tensors of a model folder, mapped from its safetensors files.

Only safetensors: a pickle (`.bin`, `.pth`) can run code while it is being read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pagedrun.paged.files.json_object import JsonObject, refuse_lfs_pointer, require_folder
from pagedrun.paged.models.base_checkpoint import BaseCheckpoint, listed
from pagedrun.paged.models.network.stored_tensors import FLOATS, StoredTensor
from pagedrun.paged.values.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# A file of the folder itself: the name can lead nowhere else. What it may be is a link, because
# the Hugging Face cache keeps the contents elsewhere and links to them.
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\.safetensors")
# Of a safetensors file. The library allows 100 MB, of which it makes gigabytes of objects; a
# checkpoint with 10^5 tensors has about 10 MB.
MAX_HEADER_BYTES = 2**25


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
        shard_of: dict[str, str] = {}
        if (path / SINGLE_FILE).exists():
            names = [SINGLE_FILE]
        elif (path / INDEX_FILE).exists():
            shard_of = _read_index(path / INDEX_FILE)
            names = sorted(set(shard_of.values()))
        else:
            names = sorted(file.name for file in path.glob("*.safetensors"))
        if not names:
            raise _no_weights(path)
        checkpoint = cls(path, {name: _open_file(path / name) for name in names})
        checkpoint._check_index(shard_of)
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
            raise ModelError(f"{self.folder}: there is no tensor {name} in the safetensors files")
        return self._files[self._file_of[name]].get_slice(name)

    def _check_index(self, shard_of: Mapping[str, str]) -> None:
        lost = [name for name, shard in shard_of.items() if self._file_of.get(name) != shard]
        if lost:
            raise ModelError(
                f"{self.folder / INDEX_FILE} names tensors that are not in the file it says: "
                f"{listed(lost)}; download the model again"
            )


def _read_index(path: Path) -> dict[str, str]:
    """Return which shard holds which tensor; every shard name is checked before it is used."""
    weight_map = JsonObject.read(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path}: weight_map is missing or empty; download the model again")
    shard_of: dict[str, str] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise ModelError(
                f"{path}: weight_map names {ascii(shard)[:80]}, which is not a *.safetensors file "
                "in this folder; download the model again"
            )
        shard_of[name] = shard
    return shard_of


def _no_weights(path: Path) -> ModelError:
    others = sorted(
        file.name
        for file in path.iterdir()
        if file.suffix in (".bin", ".pth", ".pt", ".ckpt", ".gguf")
    )
    if not others:
        return ModelError(
            f"{path}: there are no *.safetensors files; pass a Hugging Face model folder, or "
            "download the model again"
        )
    if others[0].endswith(".gguf"):
        return ModelError(
            f"{path}: the weights are there as GGUF ({listed(others)}); pass the path of that file"
        )
    return ModelError(
        f"{path}: the weights are only there as {listed(others)}, and such files can run code when "
        "they are read; convert them to safetensors, or use a version of the model that has them"
    )


def _open_file(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(
            f"{path.parent}: {path.name} is missing, or a link that leads nowhere; download the "
            "model again"
        )
    refuse_lfs_pointer(path)
    with path.open("rb") as file:
        num_header_bytes = int.from_bytes(file.read(8), "little")
    if num_header_bytes > MAX_HEADER_BYTES:
        raise ModelError(
            f"{path} is corrupt: its header is {num_header_bytes:,} bytes long, where "
            f"{MAX_HEADER_BYTES:,} are enough for any model; download it again"
        )
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path} is truncated or corrupt ({str(error)[:120]}); download it again"
        ) from error
