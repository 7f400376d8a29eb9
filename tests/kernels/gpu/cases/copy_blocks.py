"""Copies within a pool, and between pools of which one has more than 2^31 elements."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case

IDS = torch.tensor([1, 0])


def copy(dtype: torch.dtype) -> None:
    GpuBackend.copy_blocks(torch.empty(4, 2, 5, 8, 64, 128, dtype=dtype), IDS, IDS)


def swap(dtype: torch.dtype) -> None:
    large = torch.empty(1, 2, 2**18 + 1, 1, 64, 64, dtype=dtype)  # never written: no memory
    small = torch.empty(1, 2, 3, 1, 64, 64, dtype=dtype)
    GpuBackend.swap_blocks(large, small, IDS, IDS)


CASES = [
    Case("copy_blocks-bfloat16", functools.partial(copy, torch.bfloat16)),
    # Which has no such type.
    Case("copy_blocks-float8", functools.partial(copy, torch.float8_e4m3fn), short=("sm_80",)),
    Case("swap_blocks-int8", functools.partial(swap, torch.int8), short=("sm_90",)),
    Case("swap_blocks-float8", functools.partial(swap, torch.float8_e4m3fn)),
]
