"""StepTimes: prompt tokens cost what the steps say."""

import random

import pytest

from pagedrun.paged.report.step_times import StepTimes


def test_both_costs_are_told_apart() -> None:
    times, rng = StepTimes(), random.Random(1)
    for _ in range(200):
        prompt, generated = rng.choice([0, 0, 500, 2048]), rng.randrange(128)
        noise = 1 + rng.uniform(-0.05, 0.05)
        times.add((prompt * 2e-4 + generated * 5e-3) * noise, prompt, generated)
    assert times.seconds_per_prompt_token == pytest.approx(2e-4, rel=0.1)


def test_steps_that_are_all_alike_give_the_mean() -> None:
    times = StepTimes()
    for _ in range(3):
        times.add(0.3, 20, 10)
    assert times.seconds_per_prompt_token == pytest.approx(0.01)


def test_a_cost_is_never_negative() -> None:
    times = StepTimes()
    times.add(1.0, 0, 10)
    times.add(0.9, 100, 10)  # what noise can do
    assert times.seconds_per_prompt_token == pytest.approx(1.9 / 120)


def test_nothing_costs_nothing() -> None:
    times = StepTimes()
    times.add(0.1, 0, 0)
    assert times.seconds_per_prompt_token == 0.0
