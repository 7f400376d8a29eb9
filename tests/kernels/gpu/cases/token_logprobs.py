"""Log-probabilities with and without the likeliest tokens, for both dtypes of logits."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case


def launch(vocab_size: int, num_top: int, dtype: torch.dtype) -> None:
    ids = torch.empty(2, dtype=torch.int64)
    GpuBackend.token_logprobs(torch.empty(2, vocab_size, dtype=dtype), ids, ids, num_top)


CASES = [
    Case(
        f"token-logprobs-{vocab_size}-{num_top}-{dtype}".replace("torch.", ""),
        functools.partial(launch, vocab_size, num_top, dtype),
        short=("sm_90",) if dtype is torch.bfloat16 else (),
    )
    for vocab_size, num_top, dtype in ((151936, 20, torch.bfloat16), (50257, 0, torch.float32))
]
