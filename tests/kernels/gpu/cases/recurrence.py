"""Recurrent layers: heads of 128 as in Qwen3.5, shared keys, and heads of other sizes."""

import functools

import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.op_values import StateInputs
from tests.kernels.gpu.ahead_of_time import Case


def inputs() -> StateInputs:
    starts = torch.tensor([0, 1, 3], dtype=torch.int32)
    slots = torch.zeros(3, dtype=torch.int32)
    return StateInputs(torch.arange(3, dtype=torch.int32), starts, slots[:2], slots)


def conv(num_channels: int, size: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, state = torch.empty(3, num_channels, dtype=dtype), torch.empty(4, size - 1, num_channels)
    weight = torch.empty(num_channels, size, dtype=dtype)
    bias = torch.empty(num_channels, dtype=dtype) if has_bias else None
    GpuBackend.causal_conv(x, weight, bias, state.to(dtype), inputs(), not has_bias)


def delta_rule(
    num_key_heads: int, num_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    width = 2 * num_key_heads * key_dim + num_heads * value_dim
    qkv, gates = torch.empty(3, width, dtype=dtype), torch.empty(3, 2 * num_heads, dtype=dtype)
    of_heads = torch.empty(num_heads)
    state = torch.empty(2, num_heads, key_dim, value_dim)
    GpuBackend.gated_delta_rule(qkv, gates, of_heads, of_heads, state, inputs())


def norm(num_heads: int, size: int, dtype: torch.dtype) -> None:
    x = torch.empty(3, num_heads * size, dtype=dtype)
    GpuBackend.gated_rms_norm(x, x, torch.empty(size, dtype=dtype), 1e-6)


def gate(dtype: torch.dtype) -> None:
    x = torch.empty(3, 4096, dtype=dtype)
    GpuBackend.sigmoid_mul(x, x)


CASES = [
    Case(
        "delta-rule-128-bfloat16",
        functools.partial(delta_rule, 16, 32, 128, 128, torch.bfloat16),
        short=("sm_90",),
    ),
    Case("delta-rule-96-float32", functools.partial(delta_rule, 4, 4, 96, 80, torch.float32)),
    Case(
        "conv-4-bfloat16",
        functools.partial(conv, 8192, 4, False, torch.bfloat16),
        short=("sm_90",),
    ),
    Case("conv-3-with-bias-float32", functools.partial(conv, 2048, 3, True, torch.float32)),
    Case("gated-norm-bfloat16", functools.partial(norm, 32, 128, torch.bfloat16), short=("sm_90",)),
    Case("sigmoid-gate-bfloat16", functools.partial(gate, torch.bfloat16), short=("sm_90",)),
]
