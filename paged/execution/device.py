"""Device: where a model runs, and with which kernels."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.read_once import ON_GPU, ReadOnce
from pagedrun.paged.execution.kernel_choice import choose_kernel_set
from pagedrun.paged.values.errors import UsageError


@dataclass(frozen=True, slots=True)
class Device:
    """A place for tensors and the backend of `pagedrun.kernels` that computes there.

    `lag` is how many steps the host may be behind: 1 where the device works by itself, 0 where it
    is the host, which would gain nothing. `graphs` says whether steps that only decode run in
    buffers of their own, which the device advances: see `DecodeGraphs`. `kernel_set` is what
    multiplies on a CPU.
    """

    torch_device: torch.device
    kernels: ModuleType
    lag: int
    graphs: bool = False
    kernel_set: KernelSet | None = None
    side_stream: torch.cuda.Stream | None = None

    @classmethod
    def choose(cls, asked: str, kernel_set: str = "auto") -> "Device":
        """Return the device for `--device asked`; "auto" is the GPU if there is one.

        Raises `UsageError` for `cuda` where torch finds no GPU, and for a `kernel_set` that the
        processor cannot run.
        """
        if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()):
            return cls._cuda()
        from pagedrun.kernels.cpu.backend import backend  # here: a GPU does without Numba

        chosen = choose_kernel_set(kernel_set)
        return cls(torch.device("cpu"), backend(chosen), lag=0, kernel_set=chosen)

    @classmethod
    def _cuda(cls) -> "Device":
        if torch.version.cuda is None and torch.version.hip is None:
            raise UsageError(
                f"--device cuda: this torch ({torch.__version__}) is built without CUDA; install "
                "one with it, or use --device cpu"
            )
        if not torch.cuda.is_available():
            raise UsageError(
                "--device cuda: torch finds no GPU; check the driver and CUDA_VISIBLE_DEVICES, or "
                "use --device cpu"
            )
        try:
            from pagedrun.kernels import gpu  # Triton is not installed everywhere
        except ImportError as error:
            raise UsageError(
                f"--device cuda: the GPU kernels need Triton, which cannot be imported ({error}); "
                "pip install triton, or use --device cpu"
            ) from error

        return cls(
            torch.device("cuda", torch.cuda.current_device()),
            gpu,
            lag=1,
            graphs=True,
            side_stream=torch.cuda.Stream(),  # type: ignore[no-untyped-call]
        )

    def arithmetic(self, dtype: str) -> dict[str, Any]:
        """Return what decides the last bits of a model in `dtype`, as plain JSON values."""
        if self.kernel_set is not None:
            return {"device": "cpu", **self.kernel_set.describe(dtype), "numba": version("numba")}
        described: dict[str, Any] = {"device": self.torch_device.type, "torch": torch.__version__}
        if self.is_gpu:
            capability = torch.cuda.get_device_capability(self.torch_device)
            described["gpu"] = [torch.cuda.get_device_name(self.torch_device), *capability]
            with suppress(PackageNotFoundError):  # some builds of torch bring it under another name
                described["triton"] = version("triton")
        return described

    def check(self, dtype: torch.dtype) -> None:
        """Raise `UsageError` if the kernel set does not do what it promises on this processor."""
        if self.kernel_set is None:
            return
        from pagedrun.kernels.cpu.self_check import check_products

        wrong = check_products(self.kernel_set, dtype)
        if wrong is not None:
            others = [each for each in KernelSet.supported() if each is not self.kernel_set]
            raise UsageError(
                f"--kernel-set {self.kernel_set}: not to be relied on here, since {wrong}; please "
                f"report it, and pass --kernel-set {' or '.join(others)}"
            )

    @property
    def read_once(self) -> ReadOnce:
        """When a shared prefix is read once for all of its rows."""
        return ON_GPU if self.kernel_set is None else self.kernel_set.read_once

    @property
    def is_gpu(self) -> bool:
        """Whether the device has its own memory and its own time."""
        return self.torch_device.type == "cuda"

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Launch what is in the context on a stream of its own, for moves to and from the host.

        It begins when what was launched before is done, and what is launched afterwards waits for
        it; the host waits for neither.
        """
        if self.side_stream is None:
            yield
            return
        self.side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side_stream):
            yield
        torch.cuda.current_stream().wait_stream(self.side_stream)

    def bytes_in_use(self) -> int:
        """Return what is taken of a GPU's memory at this moment, by whomever."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free

    def place(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the device, without waiting for the copy.

        The copy takes its turn on the current stream; the page-locked memory that it reads is
        torch's to reuse when it is done.
        """
        if not self.is_gpu:
            return tensor
        return tensor.pin_memory().to(self.torch_device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> "HostCopy":
        """Begin to copy a tensor to the host."""
        if not self.is_gpu:
            return HostCopy(tensor, None)
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return HostCopy(copy, done)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A tensor on its way to the host."""

    _tensor: Tensor
    _done: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """Return the tensor when it is there."""
        if self._done is not None:
            self._done.synchronize()
        return self._tensor
