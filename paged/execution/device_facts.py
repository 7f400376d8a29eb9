"""Facts about the device of a run, determined without torch where there can be no GPU.

`plan` chooses number formats and kernels and sizes pools by these facts, and starts without
torch: it is imported only where a driver file exists or a GPU is asked for.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagedrun.kernels.partition import ReadOnce
from pagedrun.kernels.quantized_form import Activations, CodeKernels
from pagedrun.paged.execution.device_options import (
    CpuDtypes,
    DeviceDtypes,
    GpuDtypes,
    choose_kernel_set,
)
from pagedrun.paged.planning.memory import MemoryBudget


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a GPU in bytes: in total, and free."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts that decide number formats, kernels and sizes of pools.

    `memory`: of a GPU; None for a CPU, which uses host memory. `read_once`, `async_scheduling`: see
    `Device`. `code_kernels`: the kernels for quantized weights, `activations`: their inputs.
    `gpu_arithmetic`: see `Device.arithmetic`; empty for a CPU, whose facts depend on the dtype.
    """

    read_once: ReadOnce
    async_scheduling: bool = False
    memory: DeviceMemory | None = None
    code_kernels: CodeKernels = CodeKernels.NONE
    activations: Activations = Activations.AUTO
    gpu_arithmetic: Mapping[str, object] = field(default_factory=dict)

    @property
    def dtypes(self) -> DeviceDtypes:
        """Number formats of the device."""
        return CpuDtypes() if self.memory is None else GpuDtypes()

    @property
    def memory_bytes(self) -> int | None:
        """Total bytes of device memory, None for a CPU."""
        return None if self.memory is None else self.memory.total

    @property
    def packs_weights(self) -> bool:
        """Return whether the kernels repack weights into their own layout."""
        return self.memory is None

    def budget(self, *, weights: int, activations: int, utilization: float) -> MemoryBudget:
        """Return the memory of the pools with the weights loaded, in bytes.

        activations: estimate for the largest step; a run on a GPU measures it. utilization: the
        share of a GPU's memory, 0 to 1, that may be filled.
        """
        if self.memory is None:
            return MemoryBudget.of_host(taken=weights)
        return MemoryBudget.of_device(
            total=self.memory.total,
            free=max(self.memory.free - weights, 0),
            activations=activations,
            utilization=utilization,
        )


# Device files of drivers: NVIDIA, WSL, AMD.
DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))


def chosen_device(asked: str, kernel_set: str, activations: str = "auto") -> DeviceFacts:
    """Return the facts of the device that `choose_device` chooses; imports torch."""
    import torch

    from pagedrun.paged.execution.device import choose_device

    device = choose_device(asked, kernel_set, activations)
    memory, arithmetic = None, {}
    if device.has_own_memory:
        free, total = torch.cuda.mem_get_info(device.torch_device)
        memory = DeviceMemory(total, free)
        arithmetic = device.arithmetic("float32")
    return DeviceFacts(
        device.read_once,
        device.async_scheduling,
        memory,
        device.kernels.code_kernels,
        device.kernels.activations,
        arithmetic,
    )


def probe_device(
    asked: str,
    kernel_set: str,
    activations: str = "auto",
    *,
    driver_files: Iterable[Path] = DRIVER_FILES,
    choose: Callable[[str, str, str], DeviceFacts] = chosen_device,
) -> DeviceFacts:
    """Return the facts of the device of a run with `--device asked`.

    `choose` is called, and torch imported, only if a driver is installed or a GPU is requested.
    Raises `UsageError` where `choose_device` does.
    """
    if asked == "cuda" or (asked == "auto" and any(path.exists() for path in driver_files)):
        return choose(asked, kernel_set, activations)
    chosen = choose_kernel_set(kernel_set)
    return DeviceFacts(
        chosen.read_once,
        code_kernels=chosen.code_kernels,
        activations=Activations(activations),
    )
