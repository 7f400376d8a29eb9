"""Row-invariant products: narrow and wide weights, an odd depth, all dtypes."""

import functools

import torch

from pagedrun.kernels.gpu.linear import PackedLinear as GpuLinear
from tests.kernels.gpu.ahead_of_time import Case


def launch(in_features: int, out_features: int, dtype: torch.dtype, has_bias: bool) -> None:
    weight = torch.empty(out_features, in_features, dtype=dtype)
    bias = torch.empty(out_features, dtype=dtype) if has_bias else None
    GpuLinear(weight, bias, row_invariant=True)(torch.empty(3, in_features, dtype=dtype))


CASES = [
    Case(
        "linear-4096-bfloat16",
        functools.partial(launch, 4096, 4096, torch.bfloat16, False),
        short=("sm_90", "sm_100", "gfx942"),
        matrix="wide",
    ),
    Case(
        "linear-1024-to-151936-bfloat16",
        functools.partial(launch, 1024, 151936, torch.bfloat16, False),
        matrix="wide",
    ),
    Case(
        "linear-2048-bias-float16",
        functools.partial(launch, 2048, 3072, torch.float16, True),
        matrix="wide",
    ),
    Case("linear-1000-bfloat16", functools.partial(launch, 1000, 777, torch.bfloat16, True)),
    Case(
        "linear-1024-float32",
        functools.partial(launch, 1024, 1024, torch.float32, True),
    ),
]
