"""Weights of few bits: every kind, few rows and many, one expert's and those of a mixture."""

import functools

import torch

from pagedrun.kernels.gpu.quantized.code_tensors import CodeTensors
from pagedrun.kernels.gpu.quantized.linear import QuantizedGroupedLinear, QuantizedLinear
from pagedrun.kernels.gpu.quantized.products import expand
from tests.kernels.gpu.ahead_of_time import Case
from tests.support.packed_forms import GPU_FORMS

FORMS = {
    **{name: GPU_FORMS[name] for name in ("awq", "q4_0", "q4_k", "q5_k", "q6_k", "mxfp4")},
    "int8": GPU_FORMS["int8_rows"],
    "fp8": GPU_FORMS["float8"],
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
            short=("sm_90",) if (form, num_rows) == ("awq", 16) else (),
            matrix="wide",
        )
        for form in FORMS
        for num_rows in ((16, 32, 64, 128) if form == "awq" else (16, 128))
    ),
    *(
        Case(
            f"packed-{form}-invariant",
            functools.partial(multiply, form, 7, BF16, row_invariant=True),
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
            short=("sm_90",) if form == "mxfp4" else (),
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
