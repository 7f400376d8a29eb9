"""Mixtures of experts: routing, products in every dtype, an odd depth, and the sum."""

import functools

import torch

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.gpu.grouped_linear import PackedGroupedLinear as GpuGroupedLinear
from tests.kernels.gpu.ahead_of_time import Case


def products(
    num_experts: int,
    in_features: int,
    out_features: int,
    dtype: torch.dtype,
    has_bias: bool = False,
) -> None:
    weight = torch.empty(out_features, in_features, dtype=dtype)
    bias = torch.empty(num_experts, out_features, dtype=dtype) if has_bias else None
    layer = GpuGroupedLinear([[weight] * num_experts], bias)
    starts = torch.zeros(num_experts + 1, dtype=torch.int64)
    layer(torch.empty(3, in_features, dtype=dtype), starts, torch.zeros(6, dtype=torch.int64))


def route(num_experts: int, choice: ExpertChoice, dtype: torch.dtype) -> None:
    correction = torch.empty(num_experts) if choice.num_groups > 1 else None
    GpuBackend.route(torch.empty(3, num_experts, dtype=dtype), choice, correction)


def combine(num_chosen: int, size: int, dtype: torch.dtype) -> None:
    rows = torch.zeros(3, num_chosen, dtype=torch.int64)
    shared, gate = torch.empty(3, size, dtype=dtype), torch.empty(3, 1, dtype=dtype)
    outputs = torch.empty(9, size, dtype=dtype)
    GpuBackend.combine_experts(outputs, rows, torch.empty(3, num_chosen), shared, gate)


CASES = [
    Case(
        "experts-128-of-2048-bfloat16",
        functools.partial(products, 128, 2048, 1536, torch.bfloat16),
        matrix="wide",
    ),
    Case(
        "experts-60-of-1408-float16",
        functools.partial(products, 60, 1408, 2048, torch.float16),
        matrix="wide",
    ),
    Case(
        "experts-32-of-2880-bfloat16-bias",
        functools.partial(products, 32, 2880, 5760, torch.bfloat16, has_bias=True),
        short=("sm_90",),
        matrix="wide",
    ),
    Case("experts-8-of-1000-float32", functools.partial(products, 8, 1000, 777, torch.float32)),
    Case(
        "route-8-of-128-bfloat16",
        functools.partial(route, 128, ExpertChoice(8, Score.SOFTMAX, True), torch.bfloat16),
    ),
    Case(
        "route-4-of-60",
        functools.partial(route, 60, ExpertChoice(4, Score.SIGMOID, True), torch.float32),
    ),
    Case(
        "route-6-of-160-in-groups",
        functools.partial(
            route,
            160,
            ExpertChoice(6, Score.SIGMOID, True, 1e-20, 2.5, num_groups=8, num_chosen_groups=3),
            torch.float32,
        ),
        short=("sm_90",),
    ),
    Case(
        "combine-8-experts-bfloat16",
        functools.partial(combine, 8, 2048, torch.bfloat16),
        short=("sm_90",),
    ),
]
