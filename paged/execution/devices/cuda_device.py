"""CudaDevice: a GPU, which has a memory and a time of its own. AMD's go by torch's same names."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from pagedrun.paged.execution.devices.captured_step import CapturedStep
from pagedrun.paged.execution.devices.cuda_step import CudaStep
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.devices.device_dtypes import GpuDtypes
from pagedrun.paged.execution.devices.gpu_description import GpuDescription
from pagedrun.paged.execution.host_copy import HostCopy
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class CudaDevice(Device):
    """A GPU with the kernels of `pagedrun.kernels.gpu`; `side_stream` is for `aside`."""

    side_stream: torch.cuda.Stream | None = None

    @classmethod
    def current(cls) -> "CudaDevice":
        """Return torch's current GPU.

        Raises `UsageError` where torch finds none or Triton cannot be imported.
        """
        if torch.version.cuda is None and torch.version.hip is None:
            raise UsageError(
                f"{option('device')} cuda: this torch ({torch.__version__}) is built without CUDA; "
                f"install one with it, or use {option('device')} cpu"
            )
        if not torch.cuda.is_available():
            raise UsageError(
                f"{option('device')} cuda: torch finds no GPU; check the driver and "
                f"CUDA_VISIBLE_DEVICES, or use {option('device')} cpu"
            )
        try:
            from pagedrun.kernels.gpu.backend import GpuBackend  # Triton is not everywhere
        except ImportError as error:
            raise UsageError(
                f"{option('device')} cuda: the GPU kernels need Triton, which cannot be imported "
                f"({error}); pip install triton, or use {option('device')} cpu"
            ) from error

        return cls(
            torch.device("cuda", torch.cuda.current_device()),
            GpuBackend(),
            async_scheduling=True,
            graphs=True,
            dtypes=GpuDtypes(),
            side_stream=torch.cuda.Stream(),  # type: ignore[no-untyped-call]
        )

    @property
    def is_asynchronous(self) -> bool:
        """Ops are queued."""
        return True

    @property
    def has_own_memory(self) -> bool:
        """A GPU's."""
        return True

    @property
    def memory_bytes(self) -> int | None:
        """Of the GPU."""
        return int(self._properties.total_memory)

    @property
    def captures(self) -> bool:
        """In CUDA graphs."""
        return True

    @property
    def pins_host_memory(self) -> bool:
        """Kernels read and write it over the bus."""
        return True

    @property
    def is_row_invariant(self) -> bool:
        """The vendor's products choose their order by the number of rows."""
        return False

    def arithmetic(self, dtype: str) -> dict[str, object]:
        """Return what decides the last bits of a model in `dtype`, as plain JSON values."""
        capability = torch.cuda.get_device_capability(self.torch_device)
        described: dict[str, object] = {
            "device": self.torch_device.type,
            "torch": torch.__version__,
            "gpu": [torch.cuda.get_device_name(self.torch_device), *capability],
        }
        with suppress(PackageNotFoundError):  # some builds of torch bring it under another name
            described["triton"] = version("triton")
        return described

    def aside(self) -> AbstractContextManager[None]:
        """Launch what is in the context on the side stream; see `Device.aside`."""
        return self._aside()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        if self.side_stream is None:
            yield
            return
        self.side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side_stream):
            yield
        torch.cuda.current_stream().wait_stream(self.side_stream)

    def graph_memory(self) -> object:
        """Return a pool of memory for CUDA graphs."""
        return torch.cuda.graph_pool_handle()

    def capture(self, step: Callable[[], Tensor], memory: object) -> CapturedStep:
        """Record a step in a CUDA graph; see `Device.capture`."""
        return CudaStep.of(step, memory)

    def place(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the device, without waiting for the copy.

        The copy takes its turn on the current stream; the page-locked memory that it reads is
        torch's to reuse when it is done.
        """
        return tensor.pin_memory().to(self.torch_device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> HostCopy:
        """Begin to copy a tensor to the host."""
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return HostCopy(copy, done)

    def release_unused_memory(self) -> None:
        """Give back what torch keeps for tensors to come."""
        torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        """Return the bytes that can be allocated at this moment."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def bytes_in_use(self) -> int:
        """Return what is taken of the GPU's memory at this moment, by whomever."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free

    def bytes_held(self, allocated: int, touched: int) -> int:
        """Return how many of the bytes of an allocation are in use: all of them."""
        return allocated

    def cache_bytes(self) -> int | None:
        """Return the bytes of the L2 cache, None where that is not known."""
        return int(getattr(self._properties, "L2_cache_size", 0)) or None

    def describe(self) -> GpuDescription:
        """Return the name, the memory and the runtime of the GPU."""
        properties = self._properties
        return {
            "name": properties.name,
            "memory": properties.total_memory,
            "num_processors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "runtime": torch.version.cuda or torch.version.hip,
        }

    @property
    def _properties(self) -> Any:
        return torch.cuda.get_device_properties(self.torch_device)
