"""Operations on single rows: norms, gated activations, logits and the choice of a token."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from pagedrun.kernels.gpu.backend import GpuBackend
from tests.kernels.gpu.ahead_of_time import Case

BF16, FP32 = torch.bfloat16, torch.float32
HIDDEN_SIZES = (1024, 2880, 4096, 16384)  # of common models; one is no power of two


def rms_norm(size: int, dtype: torch.dtype) -> None:
    GpuBackend.rms_norm(torch.ones(2, size), torch.ones(size, dtype=dtype), 1e-6)


def add_rms_norm(size: int, dtype: torch.dtype) -> None:
    x, weight = torch.empty(2, size, dtype=dtype), torch.empty(size, dtype=dtype)
    GpuBackend.add_rms_norm(x, torch.empty(2, size), weight, 1e-6)


def layer_norm(size: int, dtype: torch.dtype) -> None:
    GpuBackend.layer_norm(torch.empty(2, size), torch.ones(size, dtype=dtype), None, 1e-6)


def add_layer_norm(size: int, dtype: torch.dtype) -> None:
    x, weight = torch.empty(2, size, dtype=dtype), torch.empty(size, dtype=dtype)
    GpuBackend.add_layer_norm(x, torch.empty(2, size), weight, weight, 1e-6)


def row(operation: Callable[..., object], size: int, dtype: torch.dtype, *numbers: float) -> None:
    operation(torch.empty(2, size, dtype=dtype), *numbers)


def token_logprobs(vocab_size: int, num_top: int, dtype: torch.dtype) -> None:
    ids = torch.empty(2, dtype=torch.int64)
    GpuBackend.token_logprobs(torch.empty(2, vocab_size, dtype=dtype), ids, ids, num_top)


def sample(vocab_size: int, dtype: torch.dtype, filtered: bool) -> None:
    """Launch four kernels, or two without filters."""
    columns: list[Tensor] = [torch.empty(2), torch.empty(2, dtype=torch.int32)]
    columns += [torch.empty(2), torch.empty(2)]
    streams = (torch.empty(2, dtype=torch.int64) for _ in range(4))
    GpuBackend.sample(
        torch.empty(2, vocab_size, dtype=dtype), *columns, *streams, filtered=filtered
    )


def case(name: str, call: Callable[[], object], is_short: bool) -> Case:
    return Case(name.replace("torch.", ""), call, short=("sm_90",) if is_short else ())


CASES = [
    *(
        case(
            f"{norm.__name__}-{size}-{dtype}",
            functools.partial(norm, size, dtype),
            size == short and dtype is BF16,
        )
        for norm, short in (
            *((rms_norm, 4096), (add_rms_norm, 2880)),
            *((layer_norm, 1024), (add_layer_norm, 1024)),
        )
        for size in HIDDEN_SIZES
        for dtype in (BF16, FP32)
    ),
    *(
        case(
            f"{operation.__name__}-{dtype}",
            functools.partial(row, operation, size, dtype, *numbers),
            dtype is BF16,
        )
        for operation, size, *numbers in (
            (GpuBackend.silu_mul, 2 * 9728),
            (GpuBackend.gelu_tanh_mul, 2 * 9728),
            (GpuBackend.clipped_swiglu, 2 * 2880, 7.0, 1.702),
            (GpuBackend.cap_logits, 256_000, 30.0),
        )
        for dtype in (BF16, FP32)
    ),
    *(
        case(
            f"token-logprobs-{size}-{num_top}-{dtype}",
            functools.partial(token_logprobs, size, num_top, dtype),
            dtype is BF16,
        )
        for size, num_top, dtype in ((151936, 20, BF16), (50257, 0, FP32))
    ),
    *(
        case(
            f"sample-{size}-{dtype}{'' if filtered else '-unfiltered'}",
            functools.partial(sample, size, dtype, filtered),
            dtype is BF16 and filtered,
        )
        for size, dtype in ((151936, BF16), (50257, FP32))
        for filtered in (True, False)
    ),
]
