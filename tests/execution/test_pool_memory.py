"""PoolMemory: what is allocated, and whether the next run gets the last one's pool, which is the
device's to say."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateArray, StateSpec
from pagedrun.paged.execution.device import CudaDevice, Device
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.planning.pool_sizing import SlotSizes
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from tests.support.tiny_models import tiny_engine

SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32")

STATE = StateSpec((StateArray("sums", (2, 4, 4), "float32"),))


class OwnMemory(Device):
    """A device that says that it has a memory of its own."""

    __slots__ = ()

    @property
    def has_own_memory(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Device, OwnMemory])
def test_a_pool_is_kept_where_there_cannot_be_two(kind: type[Device]) -> None:
    engine = tiny_engine(Backend(), dtype="float32", device="cpu")
    device = kind(torch.device("cpu"), Backend(), async_scheduling=False)
    memory = PoolMemory(engine.loaded.model, Sampler((), device), device)
    config = EngineConfig(model=engine.config.model)
    first, _ = memory.take(config, [SPEC], [5])
    again, _ = memory.take(config, [SPEC], [5])
    assert (again is first) == device.has_own_memory
    larger, _ = memory.take(config, [SPEC], [6])
    assert larger is not first
    assert larger.groups[0].num_blocks == 6


@pytest.mark.parametrize("setting", ["prefix_once", "enforce_eager"])
def test_no_contender_replays_what_was_captured_for_another(setting: str) -> None:
    """`bench throughput --compare` has one pool for both: graphs go by what is in them."""
    engine = tiny_engine(Backend(), dtype="float32", device="cpu")
    device = OwnMemory(torch.device("cpu"), Backend(), async_scheduling=False, graphs=True)
    memory = PoolMemory(engine.loaded.model, Sampler((), device), device)
    config = EngineConfig(model=engine.config.model)
    _, first = memory.take(config, [SPEC], [5])
    _, again = memory.take(config, [SPEC], [5])
    assert first is again is not None
    changes: dict[str, Any] = {setting: not getattr(config, setting)}
    other = replace(config, **changes)
    _, others = memory.take(other, [SPEC], [5])
    assert others is not first


def test_what_is_in_use_of_a_pool() -> None:
    """A host backs the pages that are written, a GPU all of an allocation."""
    host = Device(torch.device("cpu"), Backend(), async_scheduling=False)
    gpu = CudaDevice(torch.device("cuda"), Backend(), async_scheduling=True)
    assert host.bytes_held(allocated=100, touched=30) == 30
    assert gpu.bytes_held(allocated=100, touched=30) == 100


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_swapped_blocks_and_states_share_the_swap_space(
    is_on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slots of two layers leave room for nine blocks of ten; on a disk none is of memory."""
    engine = tiny_engine(Backend(), dtype="float32", device="cpu")
    model = engine.loaded.model
    monkeypatch.setattr(type(model), "state_specs", lambda _: (STATE, STATE))
    bytes_per_block, bytes_per_slot = 2 * 2 * 2 * 8 * 4 * 16, 2 * 2 * 4 * 4 * 4
    reserved: list[int] = []
    reserve = os.posix_fallocate

    def noted(descriptor: int, start: int, size: int) -> None:
        reserved.append(size)
        reserve(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    device = Device(torch.device("cpu"), Backend(), async_scheduling=False)
    memory = PoolMemory(model, Sampler((), device), device)
    config = EngineConfig(
        model=engine.config.model,
        block_size=16,
        swap_space_bytes=10 * bytes_per_block,
        swap_dir=tmp_path if is_on_disk else None,
    )
    slots = SlotSizes(num_slots=2, num_host_slots=3, bytes_per_slot=bytes_per_slot)
    cache, _ = memory.take(config, [SPEC], [5], slots)
    assert cache.groups[0].num_host_blocks == 9
    assert cache.states is not None
    assert cache.states.num_slots == (2, 3)
    assert reserved == ([9 * bytes_per_block, 3 * bytes_per_slot] if is_on_disk else [])
    if is_on_disk:
        with pytest.raises(UsageError, match="missing: it cannot hold a file"):
            memory.take(replace(config, swap_dir=tmp_path / "missing"), [SPEC], [5], slots)
