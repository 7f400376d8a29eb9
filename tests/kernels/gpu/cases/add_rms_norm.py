"""Rows of common hidden sizes, and one that is no power of two."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(hidden_size: int, dtype: torch.dtype) -> None:
    x, weight = torch.empty(2, hidden_size, dtype=dtype), torch.empty(hidden_size, dtype=dtype)
    GpuBackend.add_rms_norm(x, torch.empty(2, hidden_size), weight, 1e-6)


CASES = [
    Case(
        f"add_rms_norm-{hidden_size}-{dtype}".replace("torch.", ""),
        functools.partial(launch, hidden_size, dtype),
        short=("sm_90",) if hidden_size == 2880 else (),
    )
    for hidden_size in (1024, 2880, 4096, 16384)
    for dtype in (torch.bfloat16, torch.float32)
]
