"""KV memories as a long run leaves them: scattered, and NaN wherever nothing is written."""

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()  # before torch and numba

import os  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from pagedrun.kernels.cpu.backend import CpuBackend  # noqa: E402
from pagedrun.kernels.gpu.backend import GpuBackend  # noqa: E402
from pagedrun.kernels.ops import Backend  # noqa: E402
from tests.support.kernel_cases import all_threads  # noqa: E402

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
# Of a result rounded once, relative to the largest element of the expected one.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1.2e-2}


# With a GPU at hand, what needs it runs by `pytest -m gpu`; without one it is interpreted.
GPU_MARKS = () if INTERPRETS else (pytest.mark.gpu,)


@pytest.fixture(params=[pytest.param("cpu" if INTERPRETS else "cuda", marks=GPU_MARKS)])
def gpu_device(request: pytest.FixtureRequest) -> torch.device:
    """Where `kernels.gpu` works: a GPU, else the CPU, where its kernels are interpreted."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def parallel() -> Iterator[None]:
    """Kernels on all threads, however many an engine before has asked for."""
    with all_threads():
        yield


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the interpreter multiply bfloat16: it holds them as uint16, and multiplies these."""
    if not INTERPRETS:
        return
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply = InterpreterBuilder.create_dot

    def widen(operand: Any) -> Any:
        if operand.dtype.scalar != language.bfloat16:
            return operand
        return TensorHandle(
            (operand.data.astype(np.uint32) << 16).view(np.float32), language.float32
        )

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widen(a), widen(b), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@dataclass(frozen=True, slots=True)
class Twin:
    """A backend and the device of its tensors."""

    ops: Backend
    device: torch.device


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=GPU_MARKS)])
def twin(request: pytest.FixtureRequest) -> Twin:
    """Each fast backend in turn."""
    if request.param == "cpu":
        return Twin(CpuBackend(), torch.device("cpu"))
    return Twin(GpuBackend(), torch.device("cpu" if INTERPRETS else "cuda"))


@dataclass(frozen=True, slots=True)
class Context:
    """One layer's KV memory and the block tables of sequences of the given lengths."""

    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor


@pytest.fixture
def make_context() -> Callable[..., Context]:
    return build_context


def build_context(
    lengths: list[int],
    *,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> Context:
    """Return a NaN-filled cache with the first `lengths[i]` slots of table i written."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-length // block_size) for length in lengths]
    shape = (sum(num_blocks) + 3, num_kv_heads, block_size, head_dim)
    key_cache, value_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    scattered = torch.randperm(shape[0], generator=generator)[: sum(num_blocks)]
    # Entries past a sequence's own blocks name a block that holds nothing but NaN.
    unused = next(block for block in range(shape[0]) if block not in scattered.tolist())
    block_tables = torch.full((len(lengths), max(num_blocks)), unused, dtype=torch.int32)
    for table, own, length in zip(
        block_tables, torch.split(scattered, num_blocks), lengths, strict=True
    ):
        table[: len(own)] = own
        positions = torch.arange(length)
        slots = (own[positions // block_size], slice(None), positions % block_size)
        for cache in (key_cache, value_cache):
            written = torch.randn(length, num_kv_heads, head_dim, generator=generator)
            cache[slots] = written.to(dtype)
    return Context(key_cache, value_cache, block_tables)


@pytest.fixture
def assert_close() -> Callable[[Tensor, Tensor], None]:
    """Compare a result with the float64 one, by what its dtype can hold."""

    def compare(actual: Tensor, expected: Tensor) -> None:
        assert actual.shape == expected.shape
        error = (actual.cpu().double() - expected).abs().max().item()
        assert error <= TOLERANCE[actual.dtype] * max(1.0, expected.abs().max().item())

    return compare
