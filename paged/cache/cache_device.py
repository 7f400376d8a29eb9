"""CacheDevice: what a KV cache asks of the device that it lies on."""

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from pagedrun.kernels.backend import Backend


class CacheDevice(Protocol):
    """A place for tensors, with kernels that move blocks there."""

    @property
    def torch_device(self) -> torch.device:
        """Where the pool lies."""
        ...

    @property
    def kernels(self) -> Backend:
        """What copies blocks."""
        ...

    @property
    def pins_host_memory(self) -> bool:
        """Whether host blocks are page-locked, so that the device can reach them."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Launch what is in the context beside the computation, in its order."""
        ...
