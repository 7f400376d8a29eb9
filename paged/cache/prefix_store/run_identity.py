"""The identity of a run: what decides the bytes that it computes."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

import pagedrun.kernels
import pagedrun.paged.models
from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.cache.prefix_store.identity import StoreIdentity
from pagedrun.paged.models.model_config import ModelConfig

FORMAT = 1


def run_identity(
    *,
    model_folder: Path,
    weights_sha256: str,
    model_config: ModelConfig,
    dtype: torch.dtype,
    spec: KVCacheSpec,
    block_size: int,
    reproducible: bool,
    machine: Mapping[str, Any],
) -> StoreIdentity:
    """Return the identity of what a run computes.

    `reproducible`: whether other kernels are taken for it. `machine`: what decides the last bits of
    these kernels here, as plain JSON values.
    """
    fields = {
        "format": FORMAT,
        "weights": weights_sha256,
        "config": hashlib.sha256(repr(model_config.network).encode()).hexdigest(),
        "dtype": _dtype_name(dtype),
        "kv_dtype": spec.dtype,
        "block_size": block_size,
        "reproducible": reproducible,
        "machine": dict(machine),
        "code": _code_digest(),
    }
    plain = json.loads(json.dumps(fields))  # as it comes back from a file
    return StoreIdentity(_model_name(model_folder), plain)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _code_digest() -> str:
    """Return a digest of the source of every kernel and layer.

    A number to be raised by hand would be forgotten once, and old keys would be taken for new.
    """
    digest = hashlib.sha256()
    for package in (pagedrun.kernels, pagedrun.paged.models):
        folder = Path(package.__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            if not name.startswith("environment/"):
                digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _model_name(folder: Path) -> str:
    """Return org/name for a folder of the hub's cache, else the folder's own name."""
    for part in folder.absolute().parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return folder.resolve().name
