from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.op_values import TokenLogprobs
from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin

VOCAB = 5000  # more than a block of any twin, and no multiple of one


def made_logits(dtype: torch.dtype, num_rows: int = 7, scale: float = 4.0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(num_rows, VOCAB, generator=generator) * scale).to(dtype)


def logprobs(twin: Twin, logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
    logits, rows, ids = (each.to(twin.device) for each in (logits, rows, ids))
    found = twin.ops.token_logprobs(logits, rows, ids, num_top)
    return TokenLogprobs(*(each.cpu() for each in found))


def assert_same(found: TokenLogprobs, expected: TokenLogprobs) -> None:
    assert torch.equal(found.ranks, expected.ranks)
    assert torch.equal(found.top_ids, expected.top_ids)
    assert (found.logprobs - expected.logprobs).abs().max() < 2e-6
    if expected.top_ids.numel():
        assert (found.top_logprobs - expected.top_logprobs).abs().max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_matches_the_reference(twin: Twin, dtype: torch.dtype, num_top: int) -> None:
    """Ties are many in bfloat16: the lowest id comes first."""
    logits = made_logits(dtype)
    rows = torch.tensor([0, 3, 3, 6])
    ids = torch.tensor([0, VOCAB - 1, 17, int(logits[6].argmax())])
    wanted = Backend.token_logprobs(logits, rows, ids, num_top)
    assert_same(logprobs(twin, logits, rows, ids, num_top), wanted)


def test_reference_is_log_softmax() -> None:
    logits = made_logits(torch.float32)
    ids = torch.arange(len(logits)) * 11
    found = Backend.token_logprobs(logits, torch.arange(len(logits)), ids, 3)
    log_softmax = logits.double().log_softmax(1)
    assert torch.allclose(found.logprobs.double(), log_softmax.gather(1, ids[:, None])[:, 0])
    assert torch.allclose(found.top_logprobs.double(), log_softmax.topk(3).values)
    assert torch.equal(found.top_ids, log_softmax.topk(3).indices)


def test_a_token_does_not_depend_on_the_others(twin: Twin) -> None:
    logits = made_logits(torch.float32, num_rows=40)
    rows, ids = torch.arange(40), torch.arange(40) * 7
    together = logprobs(twin, logits, rows, ids, 4)
    for row in (0, 13, 39):
        alone = logprobs(twin, logits[row : row + 1], torch.tensor([0]), ids[row : row + 1], 4)
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one[0], many[row])


def test_impossible_tokens_and_long_distances(twin: Twin) -> None:
    logits = made_logits(torch.float32, num_rows=2, scale=300.0)
    logits[0, 1:] = -torch.inf
    rows, ids = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 5])
    found = logprobs(twin, logits, rows, ids, 2)
    assert found.logprobs[:2].tolist() == [0.0, -torch.inf]
    assert found.top_logprobs[0].tolist() == [0.0, -torch.inf]
    assert found.top_ids[0].tolist() == [0, 1]
    assert_same(
        TokenLogprobs(*(each[2:] for each in found)),
        TokenLogprobs(*(each[2:] for each in Backend.token_logprobs(logits, rows, ids, 2))),
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_distribution_has_no_logprobs(twin: Twin, bad: float) -> None:
    logits = made_logits(torch.float32, num_rows=1)
    logits[0, 4321] = bad
    found = logprobs(twin, logits, torch.tensor([0]), torch.tensor([3]), 2)
    assert found.logprobs.isnan().all()


def test_no_tokens(twin: Twin) -> None:
    none: Any = torch.empty(0, dtype=torch.int64)
    found = logprobs(twin, made_logits(torch.float32), none, none, 3)
    assert found.top_ids.shape == (0, 3)
