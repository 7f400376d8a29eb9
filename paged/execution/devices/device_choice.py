"""Which device a run computes on."""

import torch

from pagedrun.paged.execution.devices.cuda_device import CudaDevice
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.devices.kernel_choice import choose_kernel_set


def choose_device(asked: str, kernel_set: str = "auto") -> Device:
    """Return the device for `--device asked`; "auto" is the GPU if there is one.

    Raises `UsageError` for `cuda` where torch finds no GPU, and for a `kernel_set` that the
    processor cannot run.
    """
    if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()):
        return CudaDevice.current()
    from pagedrun.kernels.cpu.backend import CpuBackend  # here: a GPU does without Numba

    chosen = choose_kernel_set(kernel_set)
    return Device(
        torch.device("cpu"), CpuBackend(chosen), async_scheduling=False, kernel_set=chosen
    )
