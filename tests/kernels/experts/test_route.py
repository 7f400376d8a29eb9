from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels import reference
from pagedrun.kernels.routing import ExpertRows
from pagedrun.kernels.score import Score
from tests.kernels.conftest import Twin

SCORES = [*Score]


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 3), (1, 1), (60, 4), (5, 5)])
def test_matches_reference(
    num_experts: int,
    num_chosen: int,
    score: Score,
    normalise: bool,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, num_experts) * 4
    expected = reference.route(logits.double(), num_chosen, score, normalise)
    found = twin.ops.route(logits.to(twin.device), num_chosen, score, normalise)
    assert found.weights.dtype is torch.float32
    assert torch.equal(found.experts.cpu(), expected.experts)
    assert_close(found.weights, expected.weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_lowest_of_equal_experts_is_chosen(dtype: torch.dtype, twin: Twin) -> None:
    logits = torch.zeros(2, 40, dtype=dtype)
    logits[0, [7, 31, 3]] = 1.0
    logits[1] = -torch.inf
    found = twin.ops.route(logits.to(twin.device), 5, Score.SOFTMAX, True)
    assert found.experts.tolist() == [[3, 7, 31, 0, 1], [0, 1, 2, 3, 4]]


def test_a_nan_spoils_its_token_alone(twin: Twin) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 8)
    clean = twin.ops.route(logits.to(twin.device), 3, Score.SOFTMAX, True)
    logits[1] = torch.nan
    found = twin.ops.route(logits.to(twin.device), 3, Score.SOFTMAX, True)
    assert found.experts[1].tolist() == [0, 1, 2]
    assert found.weights[1].isnan().all()
    for token in (0, 2):
        assert torch.equal(found.experts[token], clean.experts[token])
        assert torch.equal(found.weights[token], clean.weights[token])


def test_a_tokens_weights_do_not_depend_on_its_neighbours(twin: Twin) -> None:
    torch.manual_seed(0)
    logits = torch.randn(200, 60).to(twin.device)
    whole = twin.ops.route(logits, 4, Score.SOFTMAX, True)
    for tokens in (slice(0, 1), slice(9, 17), slice(193, 200)):
        part = twin.ops.route(logits[tokens], 4, Score.SOFTMAX, True)
        assert torch.equal(part.weights, whole.weights[tokens])


def test_rows_are_sorted_by_expert_and_token() -> None:
    found = ExpertRows.of(torch.tensor([[2, 0], [0, 5], [2, 5]]), num_experts=6)
    assert found.starts.tolist() == [0, 2, 2, 4, 4, 4, 6]
    assert found.tokens.tolist() == [0, 1, 0, 2, 1, 2]
    assert found.rows.tolist() == [[2, 0], [1, 4], [3, 5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", ["none", "plain", "gated"])
def test_combined_experts_match_reference(
    shared: str,
    dtype: torch.dtype,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    outputs, weights = torch.randn(15, 70).to(dtype), torch.rand(5, 3)
    rows = torch.randperm(15).view(5, 3)
    extra = [] if shared == "none" else [torch.randn(5, 70).to(dtype)]
    extra += [torch.randn(5, 1).to(dtype)] if shared == "gated" else []
    wide = [each.double() for each in extra]
    expected = reference.combine_experts(outputs.double(), rows, weights.double(), *wide)
    on_device = [each.to(twin.device) for each in (outputs, rows, weights, *extra)]
    found = twin.ops.combine_experts(*on_device)
    assert found.dtype is dtype
    assert_close(found, expected)
