"""DeviceFacts: what a measurement must know of the device that it runs on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.bench.result import MeasuredDevice

if TYPE_CHECKING:
    from pagedrun.paged.execution.device import Device

# What a measurement may take of the free memory: torch keeps some back, and so do others.
SHARE_OF_FREE = 0.8
# Where a processor does not tell how large its caches are.
CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The caches and the memory of a device, and what it is called."""

    device: "Device"

    @property
    def cache_bytes(self) -> int:
        """Bytes of the last cache before the memory."""
        return self.device.cache_bytes() or CACHE_BYTES

    def free_bytes(self) -> int:
        """Return the bytes that a measurement may take now."""
        return int(self.device.free_bytes() * SHARE_OF_FREE)

    def to_dict(self) -> MeasuredDevice:
        """Return what a result says of its device, besides the machine that it is in."""
        return {
            "type": self.device.torch_device.type,
            "cache_bytes": self.cache_bytes,
            **self.device.describe(),
        }
