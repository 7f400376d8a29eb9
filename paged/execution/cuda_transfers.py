"""CudaTransfers: copies of weights to a GPU on a stream of their own, from page-locked memory."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.stored_layers import Bytes
from pagedrun.paged.models.streaming.weight_ring import page_memory


class CudaTransfers:
    """Implements `Transfers` for torch's current GPU.

    Memory is locked by the driver where it is (`cudaHostRegister`): torch's allocator of locked
    memory rounds sizes up to powers of two. Memory that cannot be locked is copied all the same,
    through a buffer of the driver.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def page_locked(self, num_bytes: int) -> Bytes:
        """Return host memory that begins at a page, locked in place if the system permits."""
        memory = page_memory(num_bytes)
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = memory.ctypes.data
        if num_bytes and not int(runtime.cudaHostRegister(address, num_bytes, 0)):
            weakref.finalize(memory, runtime.cudaHostUnregister, address)
        return memory

    def memory(self, num_bytes: int) -> Tensor:
        """Return memory of the GPU, [num_bytes] uint8."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def copy(self, source: Bytes, target: Tensor) -> "CudaCopy":
        """Launch a copy behind all computations launched so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            target.copy_(torch.from_numpy(source), non_blocking=True)
            done.record(self._stream)
        return CudaCopy(done, self._device)


@dataclass(frozen=True, slots=True)
class CudaCopy:
    """Implements `Copy`; done: recorded behind it."""

    done: torch.cuda.Event
    device: torch.device

    def precede(self) -> None:
        """Let computations that are launched from now on begin behind the copy."""
        torch.cuda.current_stream(self.device).wait_event(self.done)

    def wait(self) -> None:
        """Wait on the host until the copy has ended."""
        self.done.synchronize()
