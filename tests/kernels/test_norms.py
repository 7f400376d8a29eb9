"""RMS norms of every backend: plain, added to a residual, and gated."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin
from tests.support.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]
BOTH = pytest.mark.parametrize("dtype", DTYPES)


@every_pair(
    in_turn="shape",
    shape=[(1, 16), (3, 80), (63, 1001), (200, 512)],
    dtype=DTYPES,
    weight_dtype=DTYPES,
)
def test_rms_norm_matches_reference(
    shape: tuple[int, int],
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 30).to(dtype)
    weight = torch.randn(shape[1]).to(weight_dtype)
    out = twin.ops.rms_norm(x.to(twin.device), weight.to(twin.device), 1e-5)
    assert out.dtype is weight_dtype
    assert_close(out, Backend.rms_norm(x.double(), weight.double(), 1e-5))


@BOTH
def test_row_alone_equals_row_in_batch(dtype: torch.dtype, twin: Twin) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 333).to(twin.device, dtype)
    weight = torch.randn(333).to(twin.device, dtype)
    batch = twin.ops.rms_norm(x, weight, 1e-6)  # large enough for all threads; single rows are not
    for row in range(0, 300, 23):
        alone = twin.ops.rms_norm(x[row : row + 1], weight, 1e-6)
        assert torch.equal(batch[row : row + 1], alone), row


@BOTH
def test_eps_keeps_zero_rows_finite_and_nan_stays(dtype: torch.dtype, twin: Twin) -> None:
    x = torch.zeros(2, 32, dtype=dtype, device=twin.device)
    x[1, 5] = torch.nan
    out = twin.ops.rms_norm(x, torch.ones(32, dtype=dtype, device=twin.device), 1e-6)
    assert (out[0] == 0).all()
    assert out[1].isnan().all()


def test_rows_may_be_part_of_wider_ones(twin: Twin) -> None:
    torch.manual_seed(0)
    wide, weight = torch.randn(5, 96, device=twin.device), torch.randn(32, device=twin.device)
    part = wide[:, 32:64]
    out = twin.ops.rms_norm(part, weight, 1e-6)
    assert torch.equal(out, twin.ops.rms_norm(part.contiguous(), weight, 1e-6))


def test_the_weight_may_be_wider_than_the_result(
    twin: Twin, assert_close: Callable[[Tensor, Tensor], None]
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 96), torch.randn(96)
    x, weight = x.to(twin.device).bfloat16(), weight.to(twin.device)
    out = twin.ops.rms_norm(x, weight, 1e-6, torch.bfloat16)
    assert out.dtype is torch.bfloat16
    assert_close(out, Backend.rms_norm(x.double(), weight.double(), 1e-6).cpu())
    added = twin.ops.add_rms_norm(x, torch.zeros_like(x, dtype=torch.float32), weight, 1e-6)
    assert torch.equal(added, out)


@every_pair(in_turn="dtype", shape=[(1, 16), (3, 80), (63, 1001)], dtype=DTYPES)
def test_add_rms_norm_matches_reference(
    shape: tuple[int, int],
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    residual = torch.randn(shape) * 10
    summed = residual.double()
    expected = Backend.add_rms_norm(x.double(), summed, weight.double(), 1e-6)
    exact = residual + x.float()
    residual = residual.to(twin.device)
    out = twin.ops.add_rms_norm(x.to(twin.device), residual, weight.to(twin.device), 1e-6)
    assert out.dtype is dtype
    assert_close(out, expected)
    assert torch.equal(residual.cpu(), exact)  # the float32 sum


def test_refuses_a_residual_it_could_not_update(twin: Twin) -> None:
    with pytest.raises(AssertionError):
        twin.ops.add_rms_norm(torch.ones(2, 4), torch.ones(4, 2).T, torch.ones(4), 1e-6)


@BOTH
@pytest.mark.parametrize(("num_tokens", "num_heads", "size"), [(1, 1, 5), (3, 4, 16), (30, 3, 100)])
def test_gated_rms_norm_matches_reference(
    num_tokens: int,
    num_heads: int,
    size: int,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(num_tokens, num_heads * size) * 3).to(dtype)
    wide = (torch.randn(num_tokens, 2 * num_heads * size) * 3).to(dtype)
    gate, weight = wide[:, num_heads * size :], torch.randn(size).to(dtype)
    own_gate = wide.to(twin.device)[:, num_heads * size :]
    out = twin.ops.gated_rms_norm(x.to(twin.device), own_gate, weight.to(twin.device), 1e-6)
    assert out.dtype is dtype
    assert_close(out, Backend.gated_rms_norm(x.double(), gate.double(), weight.double(), 1e-6))
