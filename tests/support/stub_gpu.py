"""A GPU with a memory of its own, played by the host: its copies are counted, and late or early."""

import threading
from collections import deque
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from pagedrun.kernels.stored_layers import Bytes
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.device_options import GpuDtypes
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.models.streaming.weight_ring import page_memory
from pagedrun.paged.planning.memory import MemoryBudget


class StubTransfers:
    """Copies in the order of their launches.

    A late one is made when something waits for it or for a later one, an early one at its launch,
    both of which a GPU may do.
    """

    def __init__(self, *, is_late: bool = True) -> None:
        self._is_late = is_late
        self._pending: deque[StubCopy] = deque()
        self._lock = threading.Lock()
        self.num_copies = self.num_bytes = 0
        self.locked_bytes = self.device_bytes = 0

    def page_locked(self, num_bytes: int) -> Bytes:
        self.locked_bytes += num_bytes
        return page_memory(num_bytes)

    def memory(self, num_bytes: int) -> Tensor:
        self.device_bytes += num_bytes
        return torch.from_numpy(page_memory(num_bytes))

    def copy(self, source: Bytes, target: Tensor) -> "StubCopy":
        copy = StubCopy(self, source, target)
        self._pending.append(copy)
        self.num_copies += 1
        self.num_bytes += target.nbytes
        if not self._is_late:
            self.end(copy)
        return copy

    def end(self, copy: "StubCopy") -> None:
        """Make the copies up to this one."""
        with self._lock:
            while copy in self._pending:
                each = self._pending.popleft()
                each.target.copy_(torch.from_numpy(each.source))


@dataclass(frozen=True, slots=True, eq=False)
class StubCopy:
    """Implements `Copy`."""

    transfers: StubTransfers
    source: Bytes
    target: Tensor

    def precede(self) -> None:
        self.transfers.end(self)

    def wait(self) -> None:
        self.transfers.end(self)


@dataclass(frozen=True, slots=True)
class StubGpu(Device):
    """The host in the part of a GPU with `free` bytes."""

    stub: StubTransfers | None = None
    free: int = 2**30

    @classmethod
    def of(cls, kernels: Backend, stub: StubTransfers, free: int = 2**30) -> "StubGpu":
        device = torch.device("cpu")
        return cls(device, kernels, async_scheduling=True, dtypes=GpuDtypes(), stub=stub, free=free)

    @property
    def has_own_memory(self) -> bool:
        return True

    @property
    def memory_bytes(self) -> int:
        return self.free

    def free_bytes(self) -> int:
        return self.free

    def transfers(self) -> StubTransfers | None:
        return self.stub


def with_pool(engine: Engine) -> Engine:
    """Return an engine on such a device with a pool of the host's memory: a GPU's is measured."""
    loaded = engine.loaded
    budget = MemoryBudget(2**30, 2**30, 2**26)
    memory = PoolMemory(loaded.model, loaded.sampler, loaded.device, budget)
    return Engine(engine.config, replace(loaded, memory=memory), engine.policy)
