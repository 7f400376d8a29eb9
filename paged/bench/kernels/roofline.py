"""Roofline: what the device itself can do, measured in the same run as what is held against it."""

from dataclasses import dataclass
from statistics import median
from typing import TypedDict

import torch

from pagedrun.paged.bench.kernels.stopwatch import Call, Stopwatch


class RooflineFigures(TypedDict):
    """`roof`: as `Roofline`."""

    bytes_per_s: float
    flops_per_s: float
    usual_bytes_per_s: float
    usual_flops_per_s: float
    launch_s: float
    dtype: str


TURNS = 7
# Bytes of the tensor that is copied, and rows and columns of the matrices: enough to take a while.
COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
MATRIX_SIZE = {"cpu": 2048, "cuda": 8192}


@dataclass(frozen=True, slots=True)
class Work:
    """What a call cannot do without: bytes to read or write, and floating point operations."""

    num_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bytes per second of a large copy, read and written ones counted, and operations per second
    of a large matrix product in `dtype`: the best of several runs each, and the middle of them.

    `launch_s` is the time of a call that does next to nothing, which is in every other time too.
    """

    bytes_per_s: float
    flops_per_s: float
    usual_bytes_per_s: float
    usual_flops_per_s: float
    launch_s: float
    dtype: str

    @classmethod
    def measure(
        cls,
        device: torch.device,
        dtype: torch.dtype,
        stopwatch: Stopwatch,
        copy_bytes: int | None = None,
        matrix_size: int | None = None,
    ) -> "Roofline":
        """Measure the device; the sizes are those of its kind unless given."""
        num_bytes = copy_bytes or COPY_BYTES[device.type]
        size = matrix_size or MATRIX_SIZE[device.type]
        source = torch.ones(num_bytes // 4, device=device)
        target = torch.zeros_like(source)
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)
        nothing = torch.zeros(1, device=device)
        calls: tuple[Call, ...] = (
            lambda: target.copy_(source),
            lambda: torch.matmul(left, right, out=product),
            lambda: nothing.zero_(),
        )
        for call in calls:
            call()
        prepared = [stopwatch.prepare(call) for call in calls]
        copy_s, product_s, launch_s = stopwatch.seconds(prepared, TURNS)
        return cls(
            bytes_per_s=2 * source.nbytes / min(copy_s),
            flops_per_s=2 * size**3 / min(product_s),
            usual_bytes_per_s=2 * source.nbytes / median(copy_s),
            usual_flops_per_s=2 * size**3 / median(product_s),
            launch_s=min(launch_s),
            dtype=str(dtype).removeprefix("torch."),
        )

    def share(self, work: Work, seconds: float) -> float:
        """Return the part of the roofline that work done in `seconds` reached, by what bounds it.

        It may pass 1: data that is read again comes from a cache, and memory is read faster than
        it is copied.
        """
        bounds = (work.num_bytes / self.bytes_per_s, work.flops / self.flops_per_s)
        return max(bounds) / seconds

    def to_dict(self) -> RooflineFigures:
        """Return the fields, as a result states them."""
        return {
            "bytes_per_s": self.bytes_per_s,
            "flops_per_s": self.flops_per_s,
            "usual_bytes_per_s": self.usual_bytes_per_s,
            "usual_flops_per_s": self.usual_flops_per_s,
            "launch_s": self.launch_s,
            "dtype": self.dtype,
        }
