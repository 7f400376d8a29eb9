"""Which runs may share keys and values: those in which everything that decides a byte is equal."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory
from pagedrun.paged.cache.prefix_store.prefix_store import PrefixStore, run_identity
from pagedrun.paged.execution.device import Device

SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32")
SLIDING = replace(SPEC, window=9)
RUN: dict[str, Any] = {
    "weights_sha256": "w",
    "model_identity": {"config": "c"},
    "dtype": torch.float32,
    "specs": [SPEC, SLIDING],
    "block_size": 16,
    "reproducible": True,
    "machine": {"kernels": "portable", "threads": 2},
}
OTHERS: list[dict[str, Any]] = [
    {"weights_sha256": "v"},
    {"model_identity": {"config": "d"}},
    {"dtype": torch.bfloat16},
    {"specs": [replace(each, dtype="int8") for each in (SPEC, SLIDING)]},
    {"specs": [SPEC, replace(SLIDING, window=10)]},
    {"specs": [replace(SPEC, num_layers=3), SLIDING]},
    {"specs": [SPEC]},
    {"block_size": 32},
    {"reproducible": False},
    {"machine": {"kernels": "portable", "threads": 3}},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_run_that_may_compute_other_bytes_is_another(other: dict[str, Any]) -> None:
    one, two = (run_identity(model_folder=Path("m"), **(RUN | more)) for more in ({}, other))
    assert one.fingerprint != two.fingerprint
    assert one == run_identity(model_folder=Path("m"), **RUN)


def test_weights_that_changed_since_they_were_loaded_are_unknown(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"loaded")
    store = PrefixStore(tmp_path / "store", 1000, [weights])
    device = Device(torch.device("cpu"), Backend(), async_scheduling=False)
    run = {name: RUN[name] for name in ("model_identity", "dtype", "reproducible", "machine")}
    run |= {"cache": KVCache([KVMemory(SPEC, 16, 2, 0, device)]), "model_folder": tmp_path}
    warnings: list[str] = []
    assert store.for_run(**run, warn=warnings.append) is not None
    assert warnings == []
    weights.write_bytes(b"others")
    os.utime(weights, ns=(1, 1))
    assert store.for_run(**run, warn=warnings.append) is None
    [warning] = warnings
    assert "have changed since they were loaded" in warning
