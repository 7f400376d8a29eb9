"""The launches of a choice, four or without filters two, for both dtypes of logits."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(vocab_size: int, dtype: torch.dtype, filtered: bool) -> None:
    GpuBackend.sample(
        torch.empty(2, vocab_size, dtype=dtype),
        torch.empty(2),
        torch.empty(2, dtype=torch.int32),
        torch.empty(2),
        torch.empty(2),
        *(torch.empty(2, dtype=torch.int64) for _ in range(4)),
        filtered=filtered,
    )


CASES = [
    Case(
        f"sample-{vocab_size}-{dtype}{'' if filtered else '-unfiltered'}".replace("torch.", ""),
        functools.partial(launch, vocab_size, dtype, filtered),
        short=("sm_90",) if dtype is torch.bfloat16 else (),
    )
    for vocab_size, dtype in ((151936, torch.bfloat16), (50257, torch.float32))
    for filtered in (True, False)
]
