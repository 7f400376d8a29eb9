"""Devices: the host's CPU or a GPU, with its kernels, its memory and transfers between the two.

`Device` is the CPU; `CudaDevice` overrides the differences of a GPU (AMD GPUs use the same names in
torch). No other code tests the kind of a device. Many small tensors go to a GPU packed into one
allocation and one copy (`transferred`), since each call to the driver costs microseconds.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from ctypes import CDLL
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import ON_GPU, ReadOnce
from pagedrun.kernels.quantized_form import Activations, CodeForm
from pagedrun.paged.execution.cuda_transfers import CudaTransfers
from pagedrun.paged.execution.device_options import (
    CpuDtypes,
    DeviceDtypes,
    GpuDescription,
    GpuDtypes,
    choose_kernel_set,
    cpu_arithmetic,
    gpu_activations,
)
from pagedrun.paged.models.streaming.device_ring import Transfers
from pagedrun.paged.planning.memory import HostMemory, peak_resident_bytes
from pagedrun.paged.values.errors import UsageError, option

if TYPE_CHECKING:
    from pagedrun.kernels.cpu.compile_ahead import AheadCompiler


class CapturedStep(Protocol):
    """Recorded step, see `Device.capture`."""

    @property
    def ids(self) -> Tensor:
        """Result of the step, at the address where each replay writes it."""

    def replay(self) -> None:
        """Launch the step with the current contents of its inputs, in stream order."""


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Tensor that is complete after the event `done`, immediately if that is None."""

    tensor: Tensor
    done: torch.cuda.Event | None = None

    def wait(self) -> Tensor:
        """Wait for the copy and return the tensor."""
        if self.done is not None:
            self.done.synchronize()
        return self.tensor


@dataclass(frozen=True, slots=True)
class Device:
    """Torch device with the backend of `pagedrun.kernels` that computes on it.

    `async_scheduling`: the host schedules a step before it has read the tokens of the previous one,
    which gains nothing where the host computes. `graphs`: decode steps run in persistent buffers
    that the device advances, see `DecodeGraphs`. `kernel_set`: kernels of a CPU, None on a GPU.
    `dtypes`: supported number formats.
    """

    torch_device: torch.device
    kernels: Backend
    async_scheduling: bool
    graphs: bool = False
    kernel_set: KernelSet | None = None
    dtypes: DeviceDtypes = CpuDtypes()  # noqa: RUF009 - it has no state

    @property
    def is_asynchronous(self) -> bool:
        """Return whether ops return before they are done, so that a timer around them is wrong."""
        return False

    @property
    def has_own_memory(self) -> bool:
        """Return whether pools are allocated in memory other than the host's.

        Then the pool of a run is as large as possible, and reused by the next run of the same
        sizes.
        """
        return False

    @property
    def memory_bytes(self) -> int | None:
        """Total bytes of device memory, None for a CPU."""
        return None

    @property
    def captures(self) -> bool:
        """Return whether decode steps can be recorded and replayed."""
        return False

    @property
    def pins_host_memory(self) -> bool:
        """Return whether host blocks are page-locked, so that the device can access them."""
        return False

    @property
    def is_row_invariant(self) -> bool:
        """Return whether the bytes of a row are independent of its batch even without
        `reproducible`."""
        return True

    @property
    def compiles_forms(self) -> bool:
        """Return whether a kernel is compiled for each form of its arguments, at a launch."""
        return self.kernel_set is None

    @property
    def read_once(self) -> ReadOnce:
        """Rule for reading a shared prefix once for all of its rows."""
        return ON_GPU if self.kernel_set is None else self.kernel_set.read_once

    def dtype(self, asked: str, own: str, *, by_torch: bool = False) -> torch.dtype:
        """Return the dtype of a model for `--dtype asked`; see `DeviceDtypes.of_model`."""
        chosen: torch.dtype = getattr(torch, self.dtypes.of_model(asked, own, by_torch=by_torch))
        return chosen

    def cache_dtype(self, asked: str, model: torch.dtype) -> torch.dtype:
        """Return the dtype of the cache for `--kv-cache-dtype asked` and the dtype of a model.

        Raises `UsageError` as `DeviceDtypes.of_cache` does.
        """
        name = self.dtypes.of_cache(asked, str(model).removeprefix("torch."))
        chosen: torch.dtype = model if name is None else getattr(torch, name)
        return chosen

    def arithmetic(self, dtype: str) -> dict[str, object]:
        """Return the facts that decide the last bits of a model in `dtype`, as plain JSON
        values."""
        if self.kernel_set is not None:
            return cpu_arithmetic(self.kernel_set, dtype)
        return {"device": self.torch_device.type, "torch": torch.__version__}

    def machine(self, dtype: str) -> dict[str, object]:
        """Return `arithmetic` and the name of the kernels: the identity of stored prefixes."""
        return {"kernels": self.kernels.name, **self.arithmetic(dtype)}

    def check(self, dtype: torch.dtype) -> None:
        """Raise `UsageError` if the self-check of the kernel set fails on this processor."""
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
        self,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        activations: Iterable[str],
        quantized: Iterable[tuple[CodeForm, bool]] = (),
        *,
        has_plain_linears: bool = True,
    ) -> "AheadCompiler | None":
        """Start to compile the CPU kernels of a decoder; None on a GPU.

        quantized: forms of weights that stay quantized, and whether their inputs are rounded.
        has_plain_linears: there are others.
        """
        if self.kernel_set is None:
            return None
        from pagedrun.kernels.cpu.compile_ahead import AheadCompiler, PanelKey, RunKernels

        own, kept = (str(each).removeprefix("torch.") for each in (dtype, cache_dtype))
        # Exact products of pairs are compiled when they are first called.
        is_listed = own == "float32" or self.kernel_set is not KernelSet.AVX512_BF16
        codes = {
            PanelKey.of(form, rounds_inputs=rounds)
            for form, rounds in quantized
            if is_listed or rounds
        }
        names = tuple(sorted(activations))
        run = RunKernels(own, kept, self.kernel_set, names, tuple(sorted(codes)), has_plain_linears)
        return AheadCompiler(run)

    def notify_compiling(self, on_compile: Callable[[], None]) -> AbstractContextManager[None]:
        """Return a context that calls `on_compile` once, when a kernel is compiled.

        On a GPU it is called now, because cached kernels cannot be listed.
        """
        if self.kernel_set is None:
            on_compile()
            return nullcontext()
        from pagedrun.kernels.cpu.compile_ahead import notify_compiling

        return notify_compiling(on_compile)

    def aside(self) -> AbstractContextManager[None]:
        """Return a context that launches transfers to and from the host on a separate stream.

        The stream waits for earlier launches, and later launches wait for it; the host does not
        wait.
        """
        return nullcontext()

    def transfers(self) -> Transfers | None:
        """Return copies of weights to memory of the device's own, None if it has none."""
        return None

    def graph_memory(self) -> object:
        """Return scratch memory shared by captured steps, None on a CPU."""
        return None

    def capture(self, step: Callable[[], Tensor], memory: object) -> CapturedStep:
        """Record a step, with scratch memory of `graph_memory`; only if the device `captures`.

        The step is computed once before, because neither the compilation of a kernel nor the first
        use of a library can be recorded.
        """
        raise NotImplementedError(f"{self.torch_device.type} captures no steps")

    def place(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the device, without waiting for the copy."""
        return tensor

    def to_host(self, tensor: Tensor) -> HostCopy:
        """Start to copy a tensor to the host."""
        return HostCopy(tensor)

    def release_unused_memory(self) -> None:
        """Return cached memory of the allocator to the system."""
        with suppress(AttributeError):  # of a C library other than glibc
            CDLL(None).malloc_trim(0)

    def free_bytes(self) -> int:
        """Return the bytes that can be allocated now."""
        return HostMemory.read().available

    def bytes_in_use(self) -> int:
        """Return the used bytes of the device; on a CPU the peak resident size of the process."""
        return peak_resident_bytes()

    def bytes_held(self, allocated: int, touched: int) -> int:
        """Return the used bytes of an allocation, `touched` of which were written."""
        return touched  # the system only backs pages that are written

    def cache_bytes(self) -> int | None:
        """Return the bytes of the last-level cache, None if unknown."""
        return largest_cpu_cache()

    def describe(self) -> GpuDescription:
        """Return facts of the device for benchmark results."""
        return {}


def choose_device(asked: str, kernel_set: str = "auto", activations: str = "auto") -> Device:
    """Return the device for `--device asked`; "auto" is the GPU if there is one.

    Raises `UsageError` for `cuda` if torch finds no GPU, for a `kernel_set` that the processor does
    not support, and for `activations` int8 on a GPU.
    """
    if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()):
        gpu_activations(activations)
        return CudaDevice.current()
    from pagedrun.kernels.cpu.backend import CpuBackend  # here: a GPU needs no Numba

    chosen = choose_kernel_set(kernel_set)
    kernels = CpuBackend(chosen, Activations(activations))
    return Device(torch.device("cpu"), kernels, async_scheduling=False, kernel_set=chosen)


@dataclass(frozen=True, slots=True)
class CudaDevice(Device):
    """GPU with the kernels of `pagedrun.kernels.gpu`; `side_stream` is used by `aside`."""

    side_stream: torch.cuda.Stream | None = None

    @classmethod
    def current(cls) -> "CudaDevice":
        """Return torch's current GPU.

        Raises `UsageError` if torch finds none or Triton cannot be imported.
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
        """GPU memory."""
        return True

    @property
    def memory_bytes(self) -> int | None:
        """Total bytes of GPU memory."""
        return int(self._properties.total_memory)

    @property
    def captures(self) -> bool:
        """CUDA graphs."""
        return True

    @property
    def pins_host_memory(self) -> bool:
        """Kernels access host blocks over the bus."""
        return True

    @property
    def is_row_invariant(self) -> bool:
        """Vendor matrix products choose the order of summation by the number of rows."""
        return False

    def arithmetic(self, dtype: str) -> dict[str, object]:
        """Return the facts that decide the last bits of a model in `dtype`, as plain JSON
        values."""
        capability = torch.cuda.get_device_capability(self.torch_device)
        described: dict[str, object] = {
            "device": self.torch_device.type,
            "torch": torch.__version__,
            "gpu": [torch.cuda.get_device_name(self.torch_device), *capability],
        }
        with suppress(PackageNotFoundError):  # some builds of torch include it under another name
            described["triton"] = version("triton")
        return described

    def aside(self) -> AbstractContextManager[None]:
        """Return a context that launches on the side stream; see `Device.aside`."""
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

    def transfers(self) -> Transfers:
        """Return copies on a stream of their own."""
        return CudaTransfers(self.torch_device)

    def graph_memory(self) -> object:
        """Return a memory pool for CUDA graphs."""
        return torch.cuda.graph_pool_handle()

    def capture(self, step: Callable[[], Tensor], memory: object) -> CapturedStep:
        """Record a step in a CUDA graph; see `Device.capture`."""
        return CudaStep.of(step, memory)

    def place(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the device, without waiting for the copy.

        The copy is queued on the current stream; torch reuses its page-locked buffer when it is
        done.
        """
        return tensor.pin_memory().to(self.torch_device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> HostCopy:
        """Start to copy a tensor to the host."""
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return HostCopy(copy, done)

    def release_unused_memory(self) -> None:
        """Empty torch's cache of free memory."""
        torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        """Return the bytes that can be allocated now."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def bytes_in_use(self) -> int:
        """Return the used bytes of GPU memory, other processes included."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free

    def bytes_held(self, allocated: int, touched: int) -> int:
        """Return all bytes of an allocation."""
        return allocated

    def cache_bytes(self) -> int | None:
        """Return the bytes of the L2 cache, None if unknown."""
        return int(getattr(self._properties, "L2_cache_size", 0)) or None

    def describe(self) -> GpuDescription:
        """Return name, memory and runtime of the GPU."""
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


@dataclass(frozen=True, slots=True)
class CudaStep:
    """Implements `CapturedStep` with a CUDA graph."""

    graph: torch.cuda.CUDAGraph
    ids: Tensor

    @classmethod
    def of(cls, step: Callable[[], Tensor], memory: Any) -> "CudaStep":
        """Record a step on torch's current GPU; see `Device.capture`."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            ids = step()
        return cls(graph, ids)

    def replay(self) -> None:
        """Launch the graph."""
        self.graph.replay()


T = TypeVar("T")
Place = Callable[[Tensor], Tensor]
ALIGNMENT = 16  # bytes: for vector loads of kernels, and at least the size of any element


def transferred(device: Device, placed: Callable[[Place], T]) -> T:
    """Return `placed` applied to host tensors, with all of them copied to the device at once.

    `placed` maps each tensor by its argument, in the same order in each call.
    """
    if not device.is_asynchronous:  # copies need no driver call
        return placed(device.place)
    found: list[Tensor] = []

    def find(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    placed(find)
    there = iter(transfer_packed(device, found))
    return placed(lambda _: next(there))


def transfer_packed(device: Device, tensors: Seq[Tensor]) -> list[Tensor]:
    """Return host tensors on the device, packed into one allocation and one copy.

    Each begins at a multiple of `ALIGNMENT` bytes.
    """
    ends, total = [], 0
    for each in tensors:
        total = -(-total // ALIGNMENT) * ALIGNMENT + each.nbytes
        ends.append(total)
    if not total:
        return [device.place(each) for each in tensors]
    packed = torch.empty(total, dtype=torch.uint8)
    bytes_of = packed.numpy()  # filled with fewer calls than a tensor
    for each, end in zip(tensors, ends, strict=True):
        if each.nbytes:
            flat = each.reshape(-1).view(torch.uint8).numpy()
            bytes_of[end - each.nbytes : end] = flat
    there = device.place(packed)
    return [_part(there, each, end) for each, end in zip(tensors, ends, strict=True)]


def _part(there: Tensor, like: Tensor, end: int) -> Tensor:
    """Return the tensor that ends at byte `end` of a packed transfer, in the shape of `like`."""
    if not like.nbytes:  # many parts of a row update are empty
        return torch.empty(like.shape, dtype=like.dtype, device=there.device)
    part = there[end - like.nbytes : end].view(like.dtype)
    return part if like.dim() == 1 else part.view(like.shape)


CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def largest_cpu_cache(folder: Path = CPU_CACHES) -> int | None:
    """Return the bytes of the largest cache in a CPU's folder, None if none is listed."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()  # "32768K"
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=None)
