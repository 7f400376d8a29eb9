"""Poolings of hidden states: the formulas, and the same bytes from a device's sums."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.models import pooler
from pagedrun.paged.models.pooler import device_sums, pooled
from pagedrun.paged.values.pooling import Pooling

LENGTHS = np.array([1, 7, 300, 2, 64])
STARTS: Int64s = np.concatenate([[0], np.cumsum(LENGTHS)])
Vector = NDArray[np.float64]


def states(dtype: torch.dtype) -> torch.Tensor:
    """Return hidden states of very different sizes, whose sums depend on their order."""
    torch.manual_seed(0)
    powers = torch.randint(-30, 30, (int(STARTS[-1]), 1))
    return (torch.randn(int(STARTS[-1]), 33) * 2.0**powers).to(dtype)


def expected(pooling: Pooling, own: Vector) -> Vector:
    """Return a text's vector by the formula of sentence-transformers."""
    numbers = np.arange(1, len(own) + 1)[:, None]
    found: dict[Pooling, Vector] = {
        Pooling.CLS: own[0],
        Pooling.LAST: own[-1],
        Pooling.MAX: own.max(axis=0),
        Pooling.MEAN: own.mean(axis=0),
        Pooling.MEAN_SQRT_LEN: own.sum(axis=0) / np.sqrt(len(own)),
        Pooling.WEIGHTED_MEAN: (own * numbers).sum(axis=0) / numbers.sum(),
    }
    return found[pooling]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pooling", list(Pooling))
def test_formula(pooling: Pooling, dtype: torch.dtype) -> None:
    hidden = states(dtype)
    found = pooled(pooling, hidden, STARTS)
    assert found.dtype == np.float32
    for text, row in enumerate(found):
        own = hidden[STARTS[text] : STARTS[text + 1]].double().numpy()
        np.testing.assert_allclose(row, expected(pooling, own), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_tokens_of_a_prompt_are_left_out_and_those_behind_it_keep_their_weights(
    pooling: Pooling,
) -> None:
    """As by sentence-transformers, whose mask hides the prompt from the sums of all poolings."""
    hidden = states(torch.float32)
    skipped = np.array([0, 3, 11, 1, 0])
    found = pooled(pooling, hidden, STARTS, skipped)
    for text, row in enumerate(found):
        own = hidden[STARTS[text] : STARTS[text + 1]].double().numpy()[skipped[text] :]
        wanted = expected(pooling, own)
        if pooling is Pooling.WEIGHTED_MEAN:
            weights = np.arange(skipped[text] + 1, skipped[text] + 1 + len(own))[:, None]
            wanted = (own * weights).sum(axis=0) / weights.sum()
        np.testing.assert_allclose(row, wanted, rtol=1e-6, atol=1e-3)


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_device_sums_to_the_same_bytes(
    pooling: Pooling, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one number is not finite, and whichever texts are beside."""
    hidden = states(torch.float32)
    hidden[3, 5], hidden[9, 6] = torch.nan, torch.inf
    on_host = pooled(pooling, hidden, STARTS)
    monkeypatch.setattr(pooler, "host_sums", device_sums)
    np.testing.assert_array_equal(pooled(pooling, hidden.to(device), STARTS), on_host)
    last = pooled(pooling, hidden[STARTS[2] :].to(device), STARTS[2:] - STARTS[2])
    np.testing.assert_array_equal(last, on_host[2:])
