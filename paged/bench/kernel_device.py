"""KernelDevice: where kernels are measured, and the backend whose kernels they are."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pagedrun.kernels import cpu, threads
from pagedrun.paged.errors import UsageError
from pagedrun.paged.memory import HostMemory

# What a point may take of the free memory: torch keeps some back, and so do others on the machine.
SHARE_OF_FREE = 0.8
# Where a processor does not tell how large its caches are.
CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KernelDevice:
    """A device by name; `cache_bytes` is the size of its last cache, before its memory."""

    name: str
    device: torch.device
    kernels: ModuleType
    cache_bytes: int

    @classmethod
    def choose(cls, asked: str) -> "KernelDevice":
        """Return the device for `--device asked`; "auto" takes a GPU where there is one.

        Raises `UsageError` if there is none, or nothing to run on it.
        """
        has_gpu = torch.cuda.is_available()
        if asked == "cuda" and not has_gpu:
            raise UsageError(
                "--device cuda: torch sees no GPU here; --device cpu measures the processor"
            )
        if asked == "cpu" or not has_gpu:
            threads.configure()
            return cls("cpu", torch.device("cpu"), cpu, _cpu_cache_bytes())
        device = torch.device("cuda", torch.cuda.current_device())
        cache_bytes = getattr(_properties(device), "L2_cache_size", 0) or CACHE_BYTES
        return cls("cuda", device, _gpu_kernels(), cache_bytes)

    @property
    def is_gpu(self) -> bool:
        """Whether work is queued, so that its time must be asked of the device."""
        return self.device.type == "cuda"

    def free_bytes(self) -> int:
        """Return the bytes that a measurement may take now."""
        if not self.is_gpu:
            return int(HostMemory.read().available * SHARE_OF_FREE)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0] * SHARE_OF_FREE)

    def describe(self) -> dict[str, Any]:
        """Return what a result says of its device, besides the machine."""
        if not self.is_gpu:
            return {"type": self.name, "cache_bytes": self.cache_bytes}
        properties = _properties(self.device)
        return {
            "type": self.name,
            "name": properties.name,
            "memory": properties.total_memory,
            "num_processors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "runtime": torch.version.cuda or getattr(torch.version, "hip", None),
            "cache_bytes": self.cache_bytes,
        }


def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


def _gpu_kernels() -> ModuleType:
    """Return the GPU backend, which is only there where Triton is."""
    try:
        return import_module("pagedrun.kernels.gpu")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--device cuda: the kernels for GPUs cannot be loaded ({error.name} is missing); "
            "--device cpu measures the processor"
        ) from error


def _cpu_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the largest cache of the first CPU."""
    sizes = [CACHE_BYTES // 2]
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()  # "32768K"
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes)
