"""Safetensors files of a model folder: names of shards, and checked opening; without torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pagedrun.paged.files.json_object import JsonObject, refuse_lfs_pointer
from pagedrun.paged.values.errors import ModelError, listed

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# A file of the folder itself: the name cannot lead elsewhere. It may be a link, since the Hugging
# Face cache links to its files.
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\.safetensors")
# The safetensors package allows 100 MB, gigabytes once parsed; a checkpoint with 10^5 tensors has
# about 10 MB.
MAX_HEADER_BYTES = 2**25


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Names of files in a folder; `shard_of` is the file of each tensor by the index."""

    names: tuple[str, ...]
    shard_of: Mapping[str, str] = field(default_factory=dict)


def weight_files(folder: Path) -> WeightFiles:
    """Return model.safetensors, else the shards of the index, else every *.safetensors file.

    Raises `ModelError` if there are none, or the index is damaged or leads out of the folder.
    """
    if (folder / SINGLE_FILE).exists():
        return WeightFiles((SINGLE_FILE,))
    if (folder / INDEX_FILE).exists():
        shard_of = _read_index(folder / INDEX_FILE)
        return WeightFiles(tuple(sorted(set(shard_of.values()))), shard_of)
    names = sorted(file.name for file in folder.glob("*.safetensors"))
    if not names:
        raise _no_weights(folder)
    return WeightFiles(tuple(names))


def _read_index(path: Path) -> dict[str, str]:
    """Return the shard of each tensor; all shard names are checked."""
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
            f"{path}: the weights are in GGUF format ({listed(others)}); pass the path of that file"
        )
    return ModelError(
        f"{path}: the only weights are in {listed(others)}, and such files can run code "
        "when they are read; convert them to safetensors, or use a version of the model "
        "with safetensors"
    )


def open_file(path: Path, framework: str) -> Any:
    """Open a file for `framework` "pt" or "np"; only the first imports torch.

    Raises `ModelError` if it is missing, damaged, or a git-lfs pointer.
    """
    if not path.is_file():
        raise ModelError(
            f"{path.parent}: {path.name} is missing, or a broken link; download the model again"
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
        return safe_open(path, framework=framework, device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path} is truncated or corrupt ({str(error)[:120]}); download it again"
        ) from error
