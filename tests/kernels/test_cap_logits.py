from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (3, 2100), (0, 5)])
def test_matches_reference(
    num_rows: int,
    size: int,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(num_rows, size) * 20).to(dtype)
    expected = logits.double()
    Backend.cap_logits(expected, 30.0)
    capped = logits.to(twin.device)
    twin.ops.cap_logits(capped, 30.0)
    if num_rows:
        assert expected.abs().max() < 30
        assert_close(capped, expected)


def test_extremes_tend_to_the_cap_and_nan_stays(twin: Twin) -> None:
    logits = torch.tensor([[-1e30, -torch.inf, torch.inf, 1e30, torch.nan, 0.0]])
    capped = logits.to(twin.device)
    twin.ops.cap_logits(capped, 5.0)
    assert capped[0, :4].tolist() == [-5, -5, 5, 5]
    assert capped[0, 4].isnan()
    assert capped[0, 5] == 0


def test_row_alone_equals_row_in_batch(twin: Twin) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 1031).to(twin.device) * 9  # more than one thread takes
    together = logits.clone()
    twin.ops.cap_logits(together, 7.0)
    for row, expected in zip(logits, together, strict=True):
        alone = row[None].clone()
        twin.ops.cap_logits(alone, 7.0)
        assert torch.equal(alone[0], expected)
