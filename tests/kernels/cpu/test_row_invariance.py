"""A row of a linear layer has the same bits whatever the batch, on data that show each change.

The operands cancel: what comes out is the rounding noise of one order of summation, where random
data, rounded to bfloat16, hide most changes of it.
"""

from collections.abc import Callable
from typing import Protocol

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears import onednn_linear
from pagedrun.kernels.cpu.linears.linear import FmaLinear
from pagedrun.kernels.cpu.linears.onednn_linear import CancellingOperands
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.reference.linear import PackedLinear as PlainLinear
from tests.support.every_pair import every_pair
from tests.support.kernel_cases import (
    DTYPES,
    THREADS,
    assert_rows_keep_their_bytes,
    misaligned,
    skip_unless_supported,
    threads,
)

CHAIN = "chain"  # the way that is left where oneDNN keeps no row's bits
WAYS = [*KernelSet, CHAIN]
# (out_features, in_features): of models with hidden sizes 1024, 896 and 576, and odd ones.
SHAPES = [
    (6144, 1024),
    (1024, 3072),
    (4096, 1024),
    (1024, 2048),
    (896, 4864),
    (1536, 576),
    (1000, 333),
]
# Around the heights of tiles, panels and register blocks, and where oneDNN changes its kernel.
ROW_COUNTS = [1, 2, 3, 5, 8, 15, 16, 17, 32, 33, 37, 64, 65, 129, 257]
MANY_ROW_COUNTS = [*range(1, 301), 384, 511, 512, 513, 1024, 2048]


class Linear(Protocol):
    def __call__(self, x: Tensor) -> Tensor: ...


def linear(way: str, weight: Tensor, bias: Tensor | None = None) -> Linear:
    if way == CHAIN:
        return FmaLinear(weight, bias)
    skip_unless_supported(KernelSet(way))
    return CpuBackend(KernelSet(way)).pack_linear(weight, bias)


def small_bias(out_features: int, dtype: torch.dtype) -> Tensor:
    """Return a bias as large as the rounding noise, which it must not hide."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(out_features, generator=generator) * 2.0**-17).to(dtype)


@every_pair(shape=SHAPES, way=WAYS, dtype=DTYPES, num_threads=THREADS, has_bias=[True, False])
def test_first_and_last_rows_are_those_of_the_batch(
    shape: tuple[int, int], way: str, dtype: torch.dtype, num_threads: int, has_bias: bool
) -> None:
    operands = CancellingOperands.make(*shape, 300, dtype, seed=5)
    bias = small_bias(shape[0], dtype) if has_bias else None
    with threads(num_threads):
        layer = linear(way, operands.weight, bias)
        expected = layer(operands.x)
        assert (expected != 0).any(), "nothing is left to tell orders apart by"
        assert_rows_keep_their_bytes(layer, operands.x, expected, ROW_COUNTS)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_threads", THREADS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_of_rows(
    shape: tuple[int, int], way: str, dtype: torch.dtype, num_threads: int
) -> None:
    operands = CancellingOperands.make(*shape, MANY_ROW_COUNTS[-1], dtype, seed=6)
    with threads(num_threads):
        layer = linear(way, operands.weight)
        expected = layer(operands.x)
        assert_rows_keep_their_bytes(layer, operands.x, expected, MANY_ROW_COUNTS)


@every_pair(shape=[(1024, 2048), (1536, 576), (1000, 333)], way=WAYS, dtype=DTYPES)
def test_neither_place_nor_alignment_nor_threads_matter(
    shape: tuple[int, int], way: str, dtype: torch.dtype
) -> None:
    operands = CancellingOperands.make(*shape, 150, dtype, seed=7)
    x = operands.x
    layer = linear(way, operands.weight)
    expected = layer(x)
    assert torch.equal(layer(misaligned(x)), expected)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer(x[shuffled]), expected[shuffled])
    assert torch.equal(layer(x[::3]), expected[::3])
    for num_threads in THREADS:
        with threads(num_threads):
            assert torch.equal(layer(x), expected), num_threads
            assert_rows_keep_their_bytes(layer, misaligned(x), expected, [1, 7, 16, 40, 149])
            # Packed by other threads than those that multiply.
            assert torch.equal(linear(way, operands.weight)(x), expected), num_threads


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows_give_no_rows(way: str, dtype: torch.dtype) -> None:
    weight = CancellingOperands.make(1024, 2048, 1, dtype).weight
    assert linear(way, weight)(torch.empty(0, 2048, dtype=dtype)).shape == (0, 1024)


@every_pair(
    shape=[(1024, 3072), (896, 4864), (1000, 333), (48, 16)],
    way=WAYS,
    dtype=DTYPES,
    num_rows=[1, 16, 77],
    has_bias=[True, False],
)
def test_matches_reference(
    shape: tuple[int, int],
    way: str,
    dtype: torch.dtype,
    num_rows: int,
    has_bias: bool,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if has_bias else None
    x = torch.randn(num_rows, shape[1]).to(dtype)
    out = linear(way, weight, bias)(x)
    assert out.dtype is dtype
    wide = PlainLinear(weight.double(), None if bias is None else bias.double())
    assert_close(out, wide(x.double()))


@pytest.mark.parametrize("way", WAYS)
def test_nan_stays_in_its_row(way: str) -> None:
    """The last row, which padding might repeat; an odd size, behind which padding must be 0."""
    x = torch.ones(37, 333, dtype=torch.bfloat16)
    x[36] = torch.nan
    out = linear(way, torch.ones(70, 333, dtype=torch.bfloat16))(x)
    assert out[36].isnan().all()
    assert (out[:36] == torch.tensor(333.0).bfloat16()).all()


def test_operands_show_what_random_data_hide() -> None:
    """Another order of summation changes most rows of these operands, in bfloat16 too."""
    operands = CancellingOperands.make(64, 1024, 50, torch.bfloat16)
    one = FmaLinear(operands.weight, None)(operands.x)
    order = torch.arange(1024).flip(0)
    other = FmaLinear(operands.weight[:, order], None)(operands.x[:, order])
    assert (one != other).any(dim=1).float().mean() > 0.9
    exact = operands.x.double() @ operands.weight.double().T
    assert (exact == 0).all()


@pytest.mark.skipif(not KernelSet.AMX.is_supported, reason="seen on processors with AMX")
def test_operands_show_that_onednn_keeps_no_rows_bits() -> None:
    operands = CancellingOperands.make(1024, 2048, 300, torch.bfloat16)
    packed = onednn_linear.pack(operands.weight)
    expected = onednn_linear.multiply(operands.x, packed)
    with pytest.raises(AssertionError, match="first"):
        assert_rows_keep_their_bytes(
            lambda x: onednn_linear.multiply(x, packed), operands.x, expected, ROW_COUNTS
        )
