"""Device: where a model runs, with which kernels, and what is true there. This one is the host."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from ctypes import CDLL
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pagedrun.kernels.attention.read_once import ON_GPU, ReadOnce
from pagedrun.kernels.backend import Backend
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.execution.devices.captured_step import CapturedStep
from pagedrun.paged.execution.devices.cpu_caches import largest_cpu_cache
from pagedrun.paged.execution.devices.device_dtypes import CpuDtypes, DeviceDtypes
from pagedrun.paged.execution.devices.gpu_description import GpuDescription
from pagedrun.paged.execution.host_copy import HostCopy
from pagedrun.paged.planning.memory import HostMemory, peak_resident_bytes
from pagedrun.paged.values.errors import UsageError, option

if TYPE_CHECKING:
    from pagedrun.kernels.cpu.compile_ahead import CompilingAhead


@dataclass(frozen=True, slots=True)
class Device:
    """A place for tensors and the backend of `pagedrun.kernels` that computes there.

    `async_scheduling` says whether the host schedules a step before it has seen the tokens of the
    one before; where the host is the device it would gain nothing. `graphs` says whether steps that
    only decode run in buffers of their own, which the device advances: see `DecodeGraphs`.
    `kernel_set` is what multiplies on a CPU. `dtypes` says which number formats it is for.

    What differs on a GPU is what `CudaDevice` overrides; no other code asks of which kind a device
    is.
    """

    torch_device: torch.device
    kernels: Backend
    async_scheduling: bool
    graphs: bool = False
    kernel_set: KernelSet | None = None
    dtypes: DeviceDtypes = CpuDtypes()  # noqa: RUF009 - it has no state

    @property
    def is_asynchronous(self) -> bool:
        """Whether an op returns before it is done, so that its time cannot be taken around it."""
        return False

    @property
    def has_own_memory(self) -> bool:
        """Whether pools lie in a memory that is not the host's.

        There a run's pool is as large as it can be, and the next run of the same sizes gets it.
        """
        return False

    @property
    def memory_bytes(self) -> int | None:
        """All bytes of its own memory, None where that is the host's."""
        return None

    @property
    def captures(self) -> bool:
        """Whether a decode step can be recorded and replayed, rather than computed op by op."""
        return False

    @property
    def pins_host_memory(self) -> bool:
        """Whether host blocks are page-locked, so that the device can reach them."""
        return False

    @property
    def is_row_invariant(self) -> bool:
        """Whether a row's bytes never depend on its batch, `reproducible` or not."""
        return True

    @property
    def read_once(self) -> ReadOnce:
        """When a shared prefix is read once for all of its rows."""
        return ON_GPU if self.kernel_set is None else self.kernel_set.read_once

    def dtype(self, asked: str, own: str) -> torch.dtype:
        """Return the dtype of a model for `--dtype asked`; see `DeviceDtypes.of_model`."""
        chosen: torch.dtype = getattr(torch, self.dtypes.of_model(asked, own))
        return chosen

    def cache_dtype(self, asked: str, model: torch.dtype) -> torch.dtype:
        """Return the dtype of the cache for `--kv-cache-dtype asked` and a model's dtype.

        Raises `UsageError` as `DeviceDtypes.of_cache` does.
        """
        name = self.dtypes.of_cache(asked, str(model).removeprefix("torch."))
        chosen: torch.dtype = model if name is None else getattr(torch, name)
        return chosen

    def arithmetic(self, dtype: str) -> dict[str, object]:
        """Return what decides the last bits of a model in `dtype`, as plain JSON values."""
        if self.kernel_set is not None:
            return {"device": "cpu", **self.kernel_set.describe(dtype), "numba": version("numba")}
        return {"device": self.torch_device.type, "torch": torch.__version__}

    def machine(self, dtype: str) -> dict[str, object]:
        """Return `arithmetic` and the kernels that it is of: what stored prefixes belong to."""
        return {"kernels": self.kernels.name, **self.arithmetic(dtype)}

    def check(self, dtype: torch.dtype) -> None:
        """Raise `UsageError` if the kernel set does not do what it promises on this processor."""
        if self.kernel_set is None:
            return
        from pagedrun.kernels.cpu.self_check import check_products

        wrong = check_products(self.kernel_set, dtype)
        if wrong is not None:
            others = [each for each in KernelSet.supported() if each is not self.kernel_set]
            raise UsageError(
                f"{option('kernel_set')} {self.kernel_set}: it failed its self-check on this "
                f"machine: {wrong}; please report this, and pass {option('kernel_set')} "
                f"{' or '.join(others)}"
            )

    def compile_ahead(
        self, dtype: torch.dtype, cache_dtype: torch.dtype, activations: Iterable[str]
    ) -> "CompilingAhead | None":
        """Begin to compile the kernels that a decoder's runs call; None where they are no CPU's."""
        if self.kernel_set is None:
            return None
        from pagedrun.kernels.cpu.compile_ahead import CompilingAhead, RunKernels

        own, kept = (str(each).removeprefix("torch.") for each in (dtype, cache_dtype))
        return CompilingAhead(RunKernels(own, kept, self.kernel_set, tuple(sorted(activations))))

    def compiling_told(self, on_compile: Callable[[], None]) -> AbstractContextManager[None]:
        """Return a context in which `on_compile` is called once, when a kernel is compiled.

        Where kernels are no CPU's it is called now: nobody says which ones are on disk.
        """
        if self.kernel_set is None:
            on_compile()
            return nullcontext()
        from pagedrun.kernels.cpu.compile_ahead import compiling_told

        return compiling_told(on_compile)

    def aside(self) -> AbstractContextManager[None]:
        """Launch what is in the context on a stream of its own, for moves to and from the host.

        It begins when what was launched before is done, and what is launched afterwards waits for
        it; the host waits for neither.
        """
        return nullcontext()

    def graph_memory(self) -> object:
        """Return scratch memory that captured steps may share, None where none is captured."""
        return None

    def capture(self, step: Callable[[], Tensor], memory: object) -> CapturedStep:
        """Record a step, with scratch memory of `graph_memory`; only where the device `captures`.

        It is computed once before, since neither compiling a kernel nor a library's first use of a
        device can be recorded.
        """
        raise NotImplementedError(f"{self.torch_device.type} captures no steps")

    def place(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the device, without waiting for the copy."""
        return tensor

    def to_host(self, tensor: Tensor) -> HostCopy:
        """Begin to copy a tensor to the host."""
        return HostCopy(tensor)

    def release_unused_memory(self) -> None:
        """Return to the system what the allocator keeps for tensors to come."""
        with suppress(AttributeError):  # of a C library other than glibc
            CDLL(None).malloc_trim(0)

    def free_bytes(self) -> int:
        """Return the bytes that can be allocated at this moment."""
        return HostMemory.read().available

    def bytes_in_use(self) -> int:
        """Return what is taken of the memory that the ledger is of: of the host's, at the peak."""
        return peak_resident_bytes()

    def bytes_held(self, allocated: int, touched: int) -> int:
        """Return how many of the bytes of an allocation are in use, of which some were touched."""
        return touched  # the system only backs pages that are written

    def cache_bytes(self) -> int | None:
        """Return the bytes of the last cache before the memory, None where that is not known."""
        return largest_cpu_cache()

    def describe(self) -> GpuDescription:
        """Return what a result says of the device besides its type."""
        return {}
