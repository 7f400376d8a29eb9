"""DeviceFacts: what a plan has to know of the device that a run would take."""

from dataclasses import dataclass

from pagedrun.kernels.attention.read_once import ReadOnce
from pagedrun.kernels.code_kernels import CodeKernels
from pagedrun.paged.execution.devices.device_dtypes import CpuDtypes, DeviceDtypes, GpuDtypes
from pagedrun.paged.planning.memory import MemoryBudget


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's own memory: bytes in all, and those that nothing takes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """`memory` is the device's own, None for a processor, which has the host's.

    `read_once` says when its kernels read a shared prefix for all rows together,
    `async_scheduling` whether the host is a step ahead of it, as `Device` says. `code_kernels`:
    which kernels it has for weights of few bits.
    """

    read_once: ReadOnce
    async_scheduling: bool = False
    memory: DeviceMemory | None = None
    code_kernels: CodeKernels = CodeKernels.NONE

    @property
    def dtypes(self) -> DeviceDtypes:
        """Which number formats suit the device."""
        return CpuDtypes() if self.memory is None else GpuDtypes()

    @property
    def memory_bytes(self) -> int | None:
        """All bytes of its own memory, None where that is the host's."""
        return None if self.memory is None else self.memory.total

    @property
    def packs_weights(self) -> bool:
        """Whether its kernels hold weights in a layout of their own."""
        return self.memory is None

    def budget(self, *, weights: int, activations: int, utilization: float) -> MemoryBudget:
        """Return what a pool may take once the weights are loaded, in bytes.

        activations: what the largest step is reckoned to take; a run on a GPU measures it.
        utilization: the share of a GPU's memory, 0 to 1, that may be filled.
        """
        if self.memory is None:
            return MemoryBudget.of_host(taken=weights)
        return MemoryBudget.of_device(
            total=self.memory.total,
            free=max(self.memory.free - weights, 0),
            activations=activations,
            utilization=utilization,
        )
