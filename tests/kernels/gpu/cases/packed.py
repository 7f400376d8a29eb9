"""Weights of few bits: every kind, few rows and many, one expert's and those of a mixture."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from pagedrun.kernels.gpu.quantized.code_tensors import CodeTensors
from pagedrun.kernels.gpu.quantized.linear import QuantizedGroupedLinear, QuantizedLinear
from pagedrun.kernels.gpu.quantized.products import expand
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight
from tests.kernels.gpu.ahead_of_time import Case


def empty(out: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(out, columns, dtype=dtype)


def awq(out: int, columns: int) -> PackedWeight:
    zeros, scales = (empty(out, columns // 128, each) for each in (torch.int8, torch.float16))
    codes = empty(out, columns, torch.int8)
    return PackedWeight(codes, 4, GroupScales(scales), 128, zeros=zeros)


def q4_0(out: int, columns: int) -> PackedWeight:
    scales = GroupScales(empty(out, columns // 32, torch.float16))
    return PackedWeight(empty(out, columns, torch.int8), 4, scales, 32)


def six_bits(out: int, columns: int) -> GroupScales:
    factors = empty(out, columns // 256, torch.float16)
    return GroupScales(empty(out, columns // 32, torch.uint8), factors)


def k_type(num_bits: int, out: int, columns: int) -> PackedWeight:
    scales, minima = (six_bits(out, columns) for _ in range(2))
    codes = empty(out, columns, torch.int8)
    return PackedWeight(codes, num_bits, scales, 32, minima=minima)


def q6_k(out: int, columns: int) -> PackedWeight:
    factors = empty(out, columns // 256, torch.float16)
    scales = GroupScales(empty(out, columns // 16, torch.int8), factors)
    return PackedWeight(empty(out, columns, torch.int8), 6, scales, 16)


def rows_of_eight_bits(out: int, columns: int) -> PackedWeight:
    scales = GroupScales(empty(out, 1, torch.float32))
    return PackedWeight(empty(out, columns, torch.int8), 8, scales, columns)


def blocks_of_float8(out: int, columns: int) -> PackedWeight:
    scales = GroupScales(empty(out // 128, columns // 128, torch.float32))
    codes = empty(out, columns, torch.uint8).view(torch.float8_e4m3fn)
    return PackedWeight(codes, 8, scales, 128, 128)


def mxfp4(out: int, columns: int) -> PackedWeight:
    scales = empty(out, columns // 32, torch.uint8).view(torch.float8_e8m0fnu)
    return PackedWeight(empty(out, columns, torch.uint8), 4, GroupScales(scales), 32)


FORMS: dict[str, Callable[[int, int], PackedWeight]] = {
    "awq": awq,
    "q4_0": q4_0,
    "q4_k": functools.partial(k_type, 4),
    "q5_k": functools.partial(k_type, 5),
    "q6_k": q6_k,
    "int8": rows_of_eight_bits,
    "fp8": blocks_of_float8,
    "mxfp4": mxfp4,
}


def multiply(form: str, num_rows: int, dtype: torch.dtype, row_invariant: bool = False) -> None:
    columns = 4096
    bias = torch.zeros(1024, dtype=dtype)
    layer = QuantizedLinear(FORMS[form](1024, columns), bias, row_invariant)
    layer(torch.empty(num_rows, columns, dtype=dtype))


def of_experts(form: str, columns: int, out: int, dtype: torch.dtype, has_bias: bool) -> None:
    bias = torch.empty(4, out, dtype=dtype) if has_bias else None
    layer = QuantizedGroupedLinear([[FORMS[form](out, columns)] * 4], bias)
    starts = torch.zeros(5, dtype=torch.int64)
    layer(torch.empty(3, columns, dtype=dtype), starts, torch.zeros(6, dtype=torch.int64))


def expanded(form: str, dtype: torch.dtype) -> None:
    weight = FORMS[form](256, 1024)
    expand(CodeTensors.of([weight]), 0, 256, weight.in_features, dtype)


BF16, FP16 = torch.bfloat16, torch.float16
CASES = [
    *(
        Case(
            f"packed-{form}-{num_rows}-rows",
            functools.partial(multiply, form, num_rows, BF16),
            short=("sm_90",) if (form, num_rows) in {("awq", 16), ("q6_k", 300)} else (),
            matrix="wide",
        )
        for form in FORMS
        for num_rows in ((16, 32, 64, 300) if form == "awq" else (16, 300))
    ),
    *(
        Case(
            f"packed-{form}-invariant",
            functools.partial(multiply, form, 7, BF16, row_invariant=True),
            short=("sm_80", "sm_90", "gfx942") if form == "q4_k" else (),
            matrix="wide",
            is_one=True,
        )
        for form in FORMS
    ),
    Case(
        "packed-awq-invariant-float16",
        functools.partial(multiply, "awq", 300, FP16, row_invariant=True),
        matrix="wide",
        is_one=True,
    ),
    *(
        Case(
            f"packed-experts-{form}",
            functools.partial(of_experts, form, columns, 512, BF16, form == "mxfp4"),
            short=("sm_80", "sm_90", "gfx942") if form == "mxfp4" else (),
            matrix="wide",
        )
        for form, columns in (("mxfp4", 2880), ("awq", 2048), ("q4_k", 2048), ("fp8", 2048))
    ),
    *(
        Case(
            f"expanded-{form}",
            functools.partial(expanded, form, BF16),
            short=("sm_90",) if form == "q4_k" else (),
        )
        for form in FORMS
    ),
]
