from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.kernels.op_values import ExpertRows
from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import Twin
from tests.support.every_pair import every_pair

SCORES = [*Score]
IN_GROUPS = {"num_groups": 4, "num_chosen_groups": 2}
SOFTMAX = Score.SOFTMAX


@every_pair(
    in_turn="size",
    size=[(8, 3), (1, 1), (60, 4), (5, 5)],  # num_experts, num_chosen
    score=SCORES,
    normalize=[True, False],
)
def test_matches_reference(
    size: tuple[int, int],
    score: Score,
    normalize: bool,
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    num_experts, num_chosen = size
    torch.manual_seed(0)
    logits = torch.randn(7, num_experts) * 4
    choice = ExpertChoice(num_chosen, score, normalize)
    expected = Backend.route(logits.double(), choice)
    found = twin.ops.route(logits.to(twin.device), choice)
    assert found.weights.dtype is torch.float32
    assert torch.equal(found.experts.cpu(), expected.experts)
    assert_close(found.weights, expected.weights)


@every_pair(size=[(8, 3), (60, 7)], score=SCORES, groups=[{}, IN_GROUPS])
def test_corrected_choices_match_reference(
    size: tuple[int, int],
    score: Score,
    groups: dict[str, int],
    twin: Twin,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    num_experts, num_chosen = size
    torch.manual_seed(0)
    logits, correction = torch.randn(9, num_experts) * 2, torch.randn(num_experts) / 4
    choice = ExpertChoice(num_chosen, score, True, 1e-2, 2.5, **groups)
    expected = Backend.route(logits.double(), choice, correction)
    found = twin.ops.route(logits.to(twin.device), choice, correction.to(twin.device))
    assert torch.equal(found.experts.cpu(), expected.experts)
    assert_close(found.weights, expected.weights)
    # Else nothing of it would be seen above.
    plain = Backend.route(logits.double(), ExpertChoice(num_chosen, score, True))
    assert not torch.equal(plain.experts, expected.experts)


def test_a_choice_in_groups_is_that_of_transformers(twin: Twin) -> None:
    from transformers.models.glm4_moe import modeling_glm4_moe as theirs

    config = theirs.Glm4MoeConfig(
        hidden_size=12,
        n_routed_experts=24,
        num_experts_per_tok=5,
        n_group=6,
        topk_group=2,
        routed_scaling_factor=1.7,
    )
    torch.manual_seed(0)
    router = theirs.Glm4MoeTopkRouter(config)
    router.weight.data.normal_()
    router.e_score_correction_bias.normal_()
    logits, weights, experts = router(torch.randn(50, 12))
    choice = ExpertChoice(5, Score.SIGMOID, True, 1e-20, 1.7, 6, 2)
    device, correction = twin.device, router.e_score_correction_bias
    found = twin.ops.route(logits.detach().to(device), choice, correction.to(device))
    dense = torch.zeros(50, 24).scatter(1, found.experts.cpu(), found.weights.cpu())
    assert torch.allclose(dense, torch.zeros(50, 24).scatter(1, experts, weights.detach()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_lowest_of_equal_experts_is_chosen(dtype: torch.dtype, twin: Twin) -> None:
    logits = torch.zeros(2, 40, dtype=dtype)
    logits[0, [7, 31, 3]] = 1.0
    logits[1] = -torch.inf
    found = twin.ops.route(logits.to(twin.device), ExpertChoice(5, SOFTMAX, True))
    assert found.experts.tolist() == [[3, 7, 31, 0, 1], [0, 1, 2, 3, 4]]


def test_a_nan_spoils_its_token_alone(twin: Twin) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 8)
    clean = twin.ops.route(logits.to(twin.device), ExpertChoice(3, SOFTMAX, True))
    logits[1] = torch.nan
    found = twin.ops.route(logits.to(twin.device), ExpertChoice(3, SOFTMAX, True))
    assert found.experts[1].tolist() == [0, 1, 2]
    assert found.weights[1].isnan().all()
    for token in (0, 2):
        assert torch.equal(found.experts[token], clean.experts[token])
        assert torch.equal(found.weights[token], clean.weights[token])


@pytest.mark.parametrize("groups", [{}, IN_GROUPS], ids=["one group", "groups"])
@pytest.mark.parametrize("score", SCORES)
def test_a_nan_spoils_its_token_where_choices_are_corrected(
    score: Score, groups: dict[str, int], twin: Twin
) -> None:
    torch.manual_seed(0)
    logits, correction = torch.randn(3, 12), torch.randn(12).to(twin.device)
    choice = ExpertChoice(3, score, True, **groups)
    clean = twin.ops.route(logits.to(twin.device), choice, correction)
    logits[1, 7] = torch.nan
    found = twin.ops.route(logits.to(twin.device), choice, correction)
    assert found.weights[1].isnan().all()
    assert len(set(found.experts[1].tolist())) == 3
    for token in (0, 2):
        assert torch.equal(found.experts[token], clean.experts[token])
        assert torch.equal(found.weights[token], clean.weights[token])


def test_of_equal_groups_the_first_are_chosen(twin: Twin) -> None:
    choice = ExpertChoice(3, Score.SIGMOID, True, num_groups=4, num_chosen_groups=2)
    logits, correction = torch.zeros(1, 12), torch.zeros(12)
    correction[[2, 3, 5]] = torch.tensor([-1.0, -1.0, -1.0])
    found = twin.ops.route(logits.to(twin.device), choice, correction.to(twin.device))
    assert found.experts.tolist() == [[0, 1, 6]]


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_a_correction_that_is_no_number_chooses_experts_that_there_are(
    spoilt: float, twin: Twin
) -> None:
    choice = ExpertChoice(5, Score.SIGMOID, True, num_groups=4, num_chosen_groups=2)
    logits, correction = torch.randn(4, 12), torch.full((12,), spoilt)
    found = twin.ops.route(logits.to(twin.device), choice, correction.to(twin.device))
    for row in found.experts.tolist():
        assert len(set(row)) == 5
        assert set(row) <= set(range(12))


def test_a_tokens_weights_do_not_depend_on_its_neighbours(twin: Twin) -> None:
    torch.manual_seed(0)
    logits = torch.randn(200, 60).to(twin.device)
    whole = twin.ops.route(logits, ExpertChoice(4, SOFTMAX, True))
    for tokens in (slice(0, 1), slice(9, 17), slice(193, 200)):
        part = twin.ops.route(logits[tokens], ExpertChoice(4, SOFTMAX, True))
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
    expected = Backend.combine_experts(outputs.double(), rows, weights.double(), *wide)
    on_device = [each.to(twin.device) for each in (outputs, rows, weights, *extra)]
    found = twin.ops.combine_experts(*on_device)
    assert found.dtype is dtype
    assert_close(found, expected)
