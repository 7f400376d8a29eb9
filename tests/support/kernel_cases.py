"""Kernel sets, numbers of threads and comparisons of bytes for tests of kernels and engines."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product

import pytest
import torch
from numba import config
from torch import Tensor

from pagedrun.kernels.cpu import grouped_linear, jit
from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import Activations
from tests.support.every_pair import long_except

DTYPES = [torch.float32, torch.bfloat16]
THREADS = [1, 2]
# How products of quantized weights are computed, and the dtype of their inputs. Each has a kernel
# for every kind of codes, which takes seconds to compile: the default run needs half of them.
USUAL_PRODUCTS = [(Activations.EXACT, torch.bfloat16), (Activations.INT8, torch.float32)]
PRODUCTS = long_except(product(Activations, DTYPES), USUAL_PRODUCTS)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch and the compiled kernels use `number` threads, as far as there are so many.

    Engines that begin meanwhile find the number in the environment, as the command does.
    """
    before, most = torch.get_num_threads(), int(config.NUMBA_NUM_THREADS)
    with pytest.MonkeyPatch.context() as patch:
        for module in (jit, group_attention, grouped_linear):
            patch.setattr(module, "num_threads", lambda: min(number, most))
        patch.setenv("OMP_NUM_THREADS", str(number))
        torch.set_num_threads(number)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def all_threads() -> AbstractContextManager[None]:
    """Let torch and the compiled kernels use as many threads as there are processors."""
    return threads(int(config.NUMBA_NUM_THREADS))


def skip_unless_supported(kernel_set: KernelSet) -> None:
    """Skip a test of a kernel set that this processor cannot run."""
    if not kernel_set.is_supported:
        pytest.skip(f"this processor cannot run {kernel_set}")


def misaligned(x: Tensor) -> Tensor:
    """Return a copy of x that begins one element after a boundary of 64 bytes."""
    elements = 64 // x.element_size()
    memory = torch.empty(x.numel() + 2 * elements, dtype=x.dtype)
    start = -memory.data_ptr() % 64 // x.element_size() + 1
    copy = memory[start : start + x.numel()].view(x.shape)
    assert copy.data_ptr() % 64 == x.element_size()
    return copy.copy_(x)


def assert_rows_keep_their_bytes(
    compute: Callable[[Tensor], Tensor], x: Tensor, expected: Tensor, row_counts: list[int]
) -> None:
    """Compute the first and the last rows of x; `expected` is what all of x gave."""
    for num_rows in row_counts:
        assert torch.equal(compute(x[:num_rows]), expected[:num_rows]), f"first {num_rows}"
        assert torch.equal(compute(x[-num_rows:]), expected[-num_rows:]), f"last {num_rows}"
