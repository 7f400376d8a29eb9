"""The products of experts: their values, and that a row's bytes are its own affair."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears.onednn_linear import CancellingOperands
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.op_values import ExpertRows
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.reference.experts import PackedGroupedLinear as PlainGroupedLinear
from tests.kernels.conftest import Twin
from tests.support.kernel_cases import DTYPES, skip_unless_supported

NUM_EXPERTS = 5
# (parts, out_features of each, in_features): whole panels, and ragged ones on both sides.
SHAPES = [(2, 32, 64), (1, 64, 96), (2, 24, 40), (1, 70, 33)]
# Expert 3 has no rows; the others have one, a few, and more than two blocks of sixteen.
COUNTS = [1, 37, 5, 0, 16]


def backend(way: KernelSet) -> Backend:
    skip_unless_supported(way)
    return CpuBackend(way)


def starts_of(counts: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])


def random_weights(shape: tuple[int, int, int], dtype: torch.dtype) -> list[list[Tensor]]:
    num_parts, num_out, num_in = shape
    torch.manual_seed(1)
    weights = torch.randn(num_parts, NUM_EXPERTS, num_out, num_in) / num_in**0.5
    return [list(part) for part in weights.to(dtype)]


def check(
    ops: Backend,
    device: torch.device,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    assert_close: Callable[[Tensor, Tensor], None],
    has_bias: bool = False,
) -> None:
    weights = random_weights(shape, dtype)
    num_rows = sum(COUNTS)
    x = torch.randn(23, shape[2]).to(dtype)
    tokens = torch.randint(23, (num_rows,))
    bias = torch.randn(NUM_EXPERTS, shape[0] * shape[1]).to(dtype) if has_bias else None
    layer = ops.pack_grouped_linear(
        [[each.to(device) for each in part] for part in weights],
        None if bias is None else bias.to(device),
    )
    assert (layer.num_experts, layer.in_features) == (NUM_EXPERTS, shape[2])
    assert layer.out_features == shape[0] * shape[1]
    given = [*(each for part in weights for each in part), *([] if bias is None else [bias])]
    assert layer.num_bytes == sum(each.nbytes for each in given)
    wide = PlainGroupedLinear(
        [[each.double() for each in part] for part in weights],
        None if bias is None else bias.double(),
    )
    starts = starts_of(COUNTS)
    found = layer(x.to(device), starts.to(device), tokens.to(device))
    assert found.dtype is dtype
    assert_close(found, wide(x.double(), starts, tokens))
    direct = layer(x[tokens].to(device), starts.to(device))
    assert torch.equal(found, direct)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_reference(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    check(twin.ops, twin.device, shape, dtype, assert_close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_each_expert_adds_its_own_bias(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    check(twin.ops, twin.device, shape, dtype, assert_close, has_bias=True)


@pytest.mark.parametrize("way", [KernelSet.AVX512_BF16, KernelSet.PORTABLE])
@pytest.mark.parametrize("shape", SHAPES)
def test_other_kernel_sets_match_reference(
    shape: tuple[int, int, int], way: KernelSet, assert_close: Callable[[Tensor, Tensor], None]
) -> None:
    check(backend(way), torch.device("cpu"), shape, torch.bfloat16, assert_close)


def assert_rows_are_their_own(ops: Backend, device: torch.device, dtype: torch.dtype) -> None:
    """Give row 0 all kinds of company; its bytes must stay those that it has alone.

    Operands cancel, so that a row is nothing but the rounding noise of one order of summation.
    """
    operands = CancellingOperands.make(48, 96, 210, dtype, seed=3)
    x = operands.x.to(device)
    weights = [[operands.weight.to(device)] * NUM_EXPERTS]
    layer = ops.pack_grouped_linear(weights)
    alone = layer(x[:1], starts_of([0, 0, 1, 0, 0]).to(device))
    assert (alone != 0).any(), "nothing is left to tell orders apart by"
    for num_others in (7, 200):
        for own_place in (0, num_others // 2, num_others):
            for num_before in (0, 3):  # rows of an expert before it
                order = [1] * num_before + [*range(1, own_place + 1), 0]
                order += range(own_place + 1, num_others + 1)
                counts = [0, num_before, num_others + 1, 0, 0]
                tokens = torch.tensor(order, device=device)
                found = layer(x, starts_of(counts).to(device), tokens)
                own = found[num_before + own_place]
                assert torch.equal(own, alone[0]), (num_others, own_place, num_before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_who_else_chose_its_expert(dtype: torch.dtype, twin: Twin) -> None:
    assert_rows_are_their_own(twin.ops, twin.device, dtype)


@pytest.mark.parametrize("way", [KernelSet.AVX512_BF16, KernelSet.PORTABLE])
def test_nor_on_other_kernel_sets(way: KernelSet) -> None:
    assert_rows_are_their_own(backend(way), torch.device("cpu"), torch.bfloat16)


def test_experts_without_rows_are_not_read() -> None:
    """Their memory is an address that nobody may touch: mapped, and protected."""
    import ctypes
    import mmap

    size, pages = 64, 16
    room = mmap.mmap(-1, pages * mmap.PAGESIZE)
    forbidden = torch.frombuffer(room, dtype=torch.float32)[: size * size].view(size, size)
    torch.manual_seed(0)
    used = torch.randn(size, size)
    layer = CpuBackend().pack_grouped_linear([[forbidden, used, forbidden]])
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    address = ctypes.c_void_p(forbidden.data_ptr())
    x = torch.randn(3, size)
    assert protect(address, ctypes.c_size_t(pages * mmap.PAGESIZE), 0) == 0
    try:
        found = layer(x, starts_of([0, 3, 0]))
    finally:
        everything = mmap.PROT_READ | mmap.PROT_WRITE
        assert protect(address, ctypes.c_size_t(pages * mmap.PAGESIZE), everything) == 0
    torch.testing.assert_close(found, x @ used.T)


def test_nan_stays_in_its_row(twin: Twin) -> None:
    weight = torch.ones(40, 33, device=twin.device)
    x = torch.ones(20, 33, device=twin.device)
    x[19] = torch.nan  # the last row, which padding might repeat
    layer = twin.ops.pack_grouped_linear([[weight, weight]])
    found = layer(x, starts_of([3, 17]).to(twin.device))
    assert found[19].isnan().all()
    assert (found[:19] == 33).all()


def test_no_rows_give_no_rows(twin: Twin) -> None:
    weight = torch.ones(40, 32, device=twin.device)
    layer = twin.ops.pack_grouped_linear([[weight, weight]])
    rows = ExpertRows.of(torch.empty(0, 1, dtype=torch.int64, device=twin.device), 2)
    found = layer(torch.empty(0, 32, device=twin.device), rows.starts, rows.tokens)
    assert found.shape == (0, 40)
