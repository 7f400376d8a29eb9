"""The identity of a run: what decides the bytes that it computes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.cache.prefix_store.identity import StoreIdentity

FORMAT = 1


def run_identity(
    *,
    model_folder: Path,
    weights_sha256: str,
    model_identity: Mapping[str, str],
    dtype: torch.dtype,
    specs: Sequence[KVCacheSpec],
    block_size: int,
    reproducible: bool,
    machine: Mapping[str, object],
) -> StoreIdentity:
    """Return the identity of what a run computes.

    `model_identity`: what decides the bytes of the model besides its weights. `reproducible`:
    whether other kernels are taken for it. `machine`: what decides the last bits of these kernels
    here, as plain JSON values. `specs`: of the groups of layers.
    """
    fields = {
        "format": FORMAT,
        "weights": weights_sha256,
        **model_identity,
        "dtype": _dtype_name(dtype),
        "kv_dtype": specs[0].dtype,
        "block_size": block_size,
        "reproducible": reproducible,
        "machine": dict(machine),
    }
    if len(specs) > 1:
        fields["kv_groups"] = [[each.num_layers, each.window] for each in specs]
    plain = json.loads(json.dumps(fields))  # as it comes back from a file
    return StoreIdentity(_model_name(model_folder), plain)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _model_name(folder: Path) -> str:
    """Return org/name for a folder of the hub's cache, else the folder's own name."""
    for part in folder.absolute().parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return folder.resolve().name
