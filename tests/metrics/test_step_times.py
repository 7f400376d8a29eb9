"""StepTimes: prompt tokens cost what the steps say, where they say anything."""

import random

import pytest

from pagedrun.paged.metrics.step_costs import StepTimes


def test_both_costs_are_told_apart() -> None:
    times, rng = StepTimes(), random.Random(1)
    for _ in range(200):
        prompt, generated = rng.choice([0, 0, 500, 2048]), rng.randrange(128)
        noise = 1 + rng.uniform(-0.05, 0.05)
        times.add((prompt * 2e-4 + generated * 5e-3) * noise, prompt, generated)
    assert times.seconds_per_prompt_token == pytest.approx(2e-4, rel=0.1)


def test_prompts_alone_are_enough() -> None:
    times = StepTimes()
    times.add(0.5, 1000, 0)
    assert times.seconds_per_prompt_token == pytest.approx(5e-4)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [(0.1, 0, 0)],
        [(0.3, 400, 10)] * 3,  # all alike
        [(1.0, 0, 10), (0.9, 400, 10)],  # what noise can do: a negative cost
        [(0.5, 12, 8), (0.5, 3, 90), (0.5, 40, 2)],  # a file whose prompts were all cached
    ],
)
def test_nothing_is_said_where_nothing_can_be_told(steps: list[tuple[float, int, int]]) -> None:
    times = StepTimes()
    for step in steps:
        times.add(*step)
    assert times.seconds_per_prompt_token is None
