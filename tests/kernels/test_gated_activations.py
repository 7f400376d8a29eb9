from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels import reference
from tests.kernels.conftest import Twin

BOTH = pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (3, 17), (63, 1000), (2, 2050)])
def test_matches_reference(
    name: str,
    num_tokens: int,
    size: int,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    gate_up = (torch.randn(num_tokens, 2 * size) * 4).to(dtype)
    out = getattr(twin.ops, name)(gate_up.to(twin.device))
    assert out.dtype is dtype
    assert_close(out, getattr(reference, name)(gate_up.double()))


@BOTH
def test_extreme_gates_neither_overflow_nor_lose_a_nan(name: str, twin: Twin) -> None:
    gate_up = torch.tensor([[-1e30, -200.0, -90.0, 90.0, 1e30, torch.nan, 1.0, 1, 1, 1, 1, 1]])
    gate_up = gate_up.clone()
    out = getattr(twin.ops, name)(gate_up.to(twin.device))[0].cpu()
    assert out[:3].abs().max() < 1e-6
    assert out[3] == 90
    assert out[4] == torch.tensor(1e30)
    assert out[5].isnan()
