"""Both widths of number, in Gemma's vocabulary."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(dtype: torch.dtype) -> None:
    GpuBackend.cap_logits(torch.empty(1, 256_000, dtype=dtype), 30.0)


CASES = [
    Case("cap_logits-bfloat16", functools.partial(launch, torch.bfloat16), short=("sm_90",)),
    Case("cap_logits-float32", functools.partial(launch, torch.float32)),
]
