from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 16), (3, 80), (63, 1001)])
def test_matches_reference(
    num_tokens: int,
    size: int,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(num_tokens, size).to(dtype), torch.randn(size).to(dtype)
    residual = torch.randn(num_tokens, size) * 10
    summed = residual.double()
    expected = Backend.add_rms_norm(x.double(), summed, weight.double(), 1e-6)
    residual = residual.to(twin.device)
    out = twin.ops.add_rms_norm(x.to(twin.device), residual, weight.to(twin.device), 1e-6)
    assert out.dtype is dtype
    assert_close(out, expected)
    assert_close(residual, summed)


def test_residual_gets_the_exact_float32_sum(twin: Twin) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 64, device=twin.device).bfloat16()
    residual = torch.randn(5, 64, device=twin.device)
    expected = residual + x.float()
    weight = torch.ones(64, dtype=torch.bfloat16, device=twin.device)
    twin.ops.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, expected)


def test_refuses_a_residual_it_could_not_update(twin: Twin) -> None:
    with pytest.raises(AssertionError):
        twin.ops.add_rms_norm(torch.ones(2, 4), torch.ones(4, 2).T, torch.ones(4), 1e-6)
