from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "num_heads", "size"), [(1, 1, 5), (3, 4, 16), (30, 3, 100)])
def test_matches_reference(
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
    out = twin.ops.gated_rms_norm(
        x.to(twin.device),
        wide.to(twin.device)[:, num_heads * size :],
        weight.to(twin.device),
        1e-6,
    )
    assert out.dtype is dtype
    expected = Backend.gated_rms_norm(x.double(), gate.double(), weight.double(), 1e-6)
    assert_close(out, expected)
