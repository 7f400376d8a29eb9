"""Layer norms of every backend: plain, and added to a residual."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin
from tests.support.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]


@every_pair(
    in_turn="shape",
    shape=[(1, 16), (3, 80), (63, 1001), (70, 512)],  # num_tokens, size
    has_bias=[True, False],
    dtype=DTYPES,
)
def test_matches_reference(
    shape: tuple[int, int],
    has_bias: bool,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 3 + 5).to(dtype)
    weight, bias = torch.randn(2, shape[1]).to(dtype)
    own, theirs = (bias.to(twin.device), bias.double()) if has_bias else (None, None)
    out = twin.ops.layer_norm(x.to(twin.device), weight.to(twin.device), own, 1e-5)
    assert out.dtype is dtype
    assert_close(out, Backend.layer_norm(x.double(), weight.double(), theirs, 1e-5))
    residual = torch.randn(shape)
    total = residual + x.float()
    held = residual.to(twin.device)
    out = twin.ops.add_layer_norm(x.to(twin.device), held, weight.to(twin.device), own, 1e-5)
    assert torch.equal(held.cpu(), total)
    assert_close(out, Backend.layer_norm(total.double(), weight.double(), theirs, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_alone_equals_row_in_batch(dtype: torch.dtype, twin: Twin) -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 333).to(twin.device, dtype)
    weight, bias = torch.randn(2, 333).to(twin.device, dtype)
    batch = twin.ops.layer_norm(x, weight, bias, 1e-6)
    for row in range(0, 70, 9):
        alone = twin.ops.layer_norm(x[row : row + 1], weight, bias, 1e-6)
        assert torch.equal(batch[row : row + 1], alone), row


def test_equal_numbers_stay_finite_and_nan_stays(twin: Twin) -> None:
    x = torch.full((2, 32), 7.0, device=twin.device)
    x[1, 5] = torch.nan
    out = twin.ops.layer_norm(x, torch.ones(32, device=twin.device), None, 1e-6)
    assert (out[0] == 0).all()
    assert out[1].isnan().all()
