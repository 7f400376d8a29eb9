"""Which device a run would take, found out without torch where there can be no GPU."""

from collections.abc import Callable, Iterable
from pathlib import Path

from pagedrun.paged.execution.devices.device_facts import DeviceFacts, DeviceMemory
from pagedrun.paged.execution.devices.kernel_choice import choose_kernel_set

# A driver that torch could find a GPU with: NVIDIA's, on Windows' Linux, and AMD's.
DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))


def chosen_device(asked: str, kernel_set: str) -> DeviceFacts:
    """Return the facts of the device that `choose_device` chooses; imports torch."""
    import torch

    from pagedrun.paged.execution.devices.device_choice import choose_device

    device = choose_device(asked, kernel_set)
    memory = None
    if device.has_own_memory:
        free, total = torch.cuda.mem_get_info(device.torch_device)
        memory = DeviceMemory(total, free)
    codes = device.kernels.code_kernels
    return DeviceFacts(device.read_once, device.async_scheduling, memory, codes)


def probe_device(
    asked: str,
    kernel_set: str,
    *,
    driver_files: Iterable[Path] = DRIVER_FILES,
    choose: Callable[[str, str], DeviceFacts] = chosen_device,
) -> DeviceFacts:
    """Return the facts of the device that a run with `--device asked` takes.

    `choose` is asked, and torch imported, only where a driver is there or a GPU is asked for.
    Raises `UsageError` where `choose_device` does.
    """
    if asked == "cuda" or (asked == "auto" and any(path.exists() for path in driver_files)):
        return choose(asked, kernel_set)
    chosen = choose_kernel_set(kernel_set)
    return DeviceFacts(chosen.read_once, code_kernels=chosen.code_kernels)
