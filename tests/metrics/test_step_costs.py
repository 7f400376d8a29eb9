"""What steps and tokens cost, fitted to steps whose costs are known."""

import random

import pytest

from pagedrun.paged.metrics.step_costs import MIN_STEPS, StepFit


def test_three_costs_are_told_apart() -> None:
    """Without the cost of a step itself, a small batch would pass for one of cheap tokens."""
    fit, rng = StepFit(), random.Random(1)
    for _ in range(300):
        prompt, generated = rng.choice([0, 0, 500, 2048]), rng.randrange(1, 128)
        seconds = 0.02 + prompt * 2e-4 + generated * 1e-3
        fit.add(seconds * (1 + rng.uniform(-0.05, 0.05)), prompt, generated)
    costs = fit.costs
    assert costs is not None
    assert costs["step_s"] == pytest.approx(0.02, rel=0.3)
    assert costs["prompt_token_s"] == pytest.approx(2e-4, rel=0.1)
    assert costs["generated_token_s"] == pytest.approx(1e-3, rel=0.1)


def test_no_cost_is_negative_and_the_sum_is_right_where_they_cannot_be_told_apart() -> None:
    fit = StepFit()
    for number in range(MIN_STEPS):
        fit.add(0.5 - 0.001 * (number % 2), 0, 8 + number % 2)  # what noise can do
    costs = fit.costs
    assert costs is not None
    assert min(costs["step_s"], costs["prompt_token_s"], costs["generated_token_s"]) >= 0
    assert costs["step_s"] + 8 * costs["generated_token_s"] == pytest.approx(0.5, rel=0.05)


def test_steps_that_are_all_alike_leave_no_cost_out_of_proportion() -> None:
    """Else a run of one token a row would let plans say hours for answers of sixty."""
    fit, rng = StepFit(), random.Random(2)
    for _ in range(100):
        rows = rng.randrange(9, 12)
        fit.add(0.3 * (1 + rng.uniform(-0.4, 0.4)), 2048 - rows, rows)
    costs = fit.costs
    assert costs is not None
    assert 0 < costs["generated_token_s"] < 30 * costs["prompt_token_s"]


def test_too_few_steps_say_nothing() -> None:
    fit = StepFit()
    for _ in range(MIN_STEPS - 1):
        fit.add(1.0, 10, 1)
    assert fit.costs is None
