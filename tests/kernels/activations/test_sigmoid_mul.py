from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (3, 17), (33, 1030)])
def test_matches_reference(
    num_tokens: int,
    size: int,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    wide = (torch.randn(num_tokens, 2 * size) * 4).to(dtype)
    x, gate = wide[:, :size], wide[:, size:]
    out = twin.ops.sigmoid_mul(*wide.to(twin.device).chunk(2, dim=1))
    assert out.dtype is dtype
    assert_close(out, Backend.sigmoid_mul(x.double(), gate.double()))


def test_extreme_gates(twin: Twin) -> None:
    gate = torch.tensor([[-1e30, -200.0, 200.0, 1e30, torch.nan]], device=twin.device)
    out = twin.ops.sigmoid_mul(torch.full((1, 5), 2.0, device=twin.device), gate)[0].cpu()
    assert out[:2].abs().max() < 1e-30
    assert out[2] == out[3] == 2
    assert out[4].isnan()
