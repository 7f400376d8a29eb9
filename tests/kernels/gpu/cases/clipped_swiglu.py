"""Both widths of number."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(dtype: torch.dtype) -> None:
    GpuBackend.clipped_swiglu(torch.empty(2, 2 * 2880, dtype=dtype), 7.0, 1.702)


CASES = [
    Case("clipped_swiglu-bfloat16", functools.partial(launch, torch.bfloat16), short=("sm_90",)),
    Case("clipped_swiglu-float32", functools.partial(launch, torch.float32)),
]
