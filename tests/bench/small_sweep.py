"""A sweep of kernels that takes a moment: its shape, sizes, device and roofline."""

from pagedrun.paged.bench.kernel_context import KernelShape
from pagedrun.paged.bench.kernel_timing import Roofline
from pagedrun.paged.bench.kernels import KernelSweep
from pagedrun.paged.bench.model_shapes import Shape
from pagedrun.paged.execution.device import choose_device

TINY = KernelShape.of("tiny", Shape.named("tiny").config, 16)
CPU = choose_device("cpu")
ROOFLINE = Roofline(100.0, 1000.0, 80.0, 900.0, launch_s=0.0, dtype="float32")
SWEEP = KernelSweep((40,), (1, 3), (128,), (4,), (24,), (0, 40))


def silent(message: str) -> None:
    pass
