"""PrefixStore: the store of an engine, and the identity of its runs."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.cache.prefix_store.entry import StoreIdentity
from pagedrun.paged.cache.prefix_store.folder import StoreFolder, stamps, weights_digest
from pagedrun.paged.cache.prefix_store.stored_prefixes import MAX_ENTRY_BYTES, StoredPrefixes
from pagedrun.paged.values.errors import option


class PrefixStore:
    """A folder and the weight files that it is used with. Build it before they are read.

    `max_bytes` is what the folder may come to hold, `max_entry_bytes` what one file in it may.
    Raises `UsageError` if the folder cannot be used.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        weight_files: Sequence[Path],
        max_entry_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._folder = StoreFolder.open(path)
        self._max_bytes = max_bytes
        self._max_entry_bytes = max_entry_bytes
        self._files = tuple(weight_files)
        self._stamps = stamps(self._files)
        self._weights_sha256: str | None = None

    def for_run(
        self,
        cache: KVCache,
        *,
        model_folder: Path,
        model_identity: Mapping[str, str],
        dtype: torch.dtype,
        reproducible: bool,
        machine: Mapping[str, object],
        warn: Callable[[str], None],
    ) -> StoredPrefixes | None:
        """Return the store's side of a run, None if it is unknown which weights it runs with.

        `model_identity`, `reproducible` and `machine`: see `run_identity`.
        """
        began = time.perf_counter()
        try:
            if self._weights_sha256 is None:
                self._weights_sha256 = weights_digest(self._folder.path, self._files)
            same = stamps(self._files) == self._stamps
        except OSError:
            same = False
        if not same or self._weights_sha256 is None:
            warn(
                f"{option('prefix_store')} {self._folder.path} is not used: the weights in "
                f"{model_folder} have changed since they were loaded"
            )
            return None
        identity = run_identity(
            model_folder=model_folder,
            weights_sha256=self._weights_sha256,
            model_identity=model_identity,
            dtype=dtype,
            specs=cache.specs,
            block_size=cache.block_size,
            reproducible=reproducible,
            machine=machine,
        )
        stored = StoredPrefixes(
            self._folder, identity, cache, self._max_bytes, warn, self._max_entry_bytes
        )
        stored.figures["seconds"] = time.perf_counter() - began
        return stored


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
