"""DeviceFacts: what a measurement must know of the device that it runs on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pagedrun.paged.execution.device import Device
from pagedrun.paged.planning.memory import HostMemory

# What a measurement may take of the free memory: torch keeps some back, and so do others.
SHARE_OF_FREE = 0.8
# Where a processor does not tell how large its caches are.
CACHE_BYTES = 64 << 20
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The caches and the memory of a device, and what it is called."""

    device: Device

    @property
    def cache_bytes(self) -> int:
        """Bytes of the last cache before the memory."""
        if self.device.is_gpu:
            return int(getattr(self._properties, "L2_cache_size", 0)) or CACHE_BYTES
        return largest_cpu_cache(CPU_CACHES)

    def free_bytes(self) -> int:
        """Return the bytes that a measurement may take now."""
        if not self.device.is_gpu:
            return int(HostMemory.read().available * SHARE_OF_FREE)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device.torch_device)[0] * SHARE_OF_FREE)

    def to_dict(self) -> dict[str, Any]:
        """Return what a result says of its device, besides the machine that it is in."""
        facts: dict[str, Any] = {
            "type": self.device.torch_device.type,
            "cache_bytes": self.cache_bytes,
        }
        if self.device.is_gpu:
            properties = self._properties
            facts |= {
                "name": properties.name,
                "memory": properties.total_memory,
                "num_processors": properties.multi_processor_count,
                "capability": f"{properties.major}.{properties.minor}",
                "runtime": torch.version.cuda or torch.version.hip,
            }
        return facts

    @property
    def _properties(self) -> Any:
        return torch.cuda.get_device_properties(self.device.torch_device)


def largest_cpu_cache(folder: Path) -> int:
    """Return the bytes of the largest cache that a CPU's folder of the system tells of."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()  # "32768K"
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=CACHE_BYTES)
