from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels import cpu, reference

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 16), (3, 80), (63, 1001), (200, 512)])
def test_matches_reference(
    num_tokens: int,
    size: int,
    x_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(num_tokens, size) * 30).to(x_dtype)
    weight = torch.randn(size).to(weight_dtype)
    out = cpu.rms_norm(x, weight, 1e-5)
    assert out.dtype is weight_dtype
    assert_close(out, reference.rms_norm(x.double(), weight.double(), 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_alone_equals_row_in_batch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(300, 333).to(dtype), torch.randn(333).to(dtype)
    batch = cpu.rms_norm(x, weight, 1e-6)  # large enough for all threads; single rows are not
    alone = torch.cat([cpu.rms_norm(row[None], weight, 1e-6) for row in x])
    assert torch.equal(batch, alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eps_keeps_zero_rows_finite_and_nan_stays(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 32, dtype=dtype)
    x[1, 5] = torch.nan
    out = cpu.rms_norm(x, torch.ones(32, dtype=dtype), 1e-6)
    assert (out[0] == 0).all()
    assert out[1].isnan().all()
