"""PoolMemory: whether the next run gets the last one's pool is the device's to say."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.execution.device import CudaDevice, Device
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.values.engine_config import EngineConfig
from tests.support.tiny_models import tiny_engine

SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32")


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
