"""Both widths of number."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(dtype: torch.dtype) -> None:
    GpuBackend.silu_mul(torch.empty(2, 2 * 9728, dtype=dtype))


CASES = [
    Case("silu_mul-bfloat16", functools.partial(launch, torch.bfloat16), short=("sm_90",)),
    Case("silu_mul-float32", functools.partial(launch, torch.float32)),
]
