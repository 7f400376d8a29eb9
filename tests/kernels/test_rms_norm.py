from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 16), (3, 80), (63, 1001), (200, 512)])
def test_matches_reference(
    num_tokens: int,
    size: int,
    x_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(num_tokens, size) * 30).to(x_dtype)
    weight = torch.randn(size).to(weight_dtype)
    out = twin.ops.rms_norm(x.to(twin.device), weight.to(twin.device), 1e-5)
    assert out.dtype is weight_dtype
    assert_close(out, Backend.rms_norm(x.double(), weight.double(), 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_alone_equals_row_in_batch(dtype: torch.dtype, twin: Twin) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 333).to(twin.device, dtype)
    weight = torch.randn(333).to(twin.device, dtype)
    batch = twin.ops.rms_norm(x, weight, 1e-6)  # large enough for all threads; single rows are not
    alone = torch.cat([twin.ops.rms_norm(row[None], weight, 1e-6) for row in x])
    assert torch.equal(batch, alone)


@pytest.mark.parametrize("dtype", DTYPES)
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
