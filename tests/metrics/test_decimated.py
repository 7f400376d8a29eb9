"""Decimated: any number of items in bounded memory, evenly spaced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.metrics.timeline import Decimated, StepRecord


def record(step: int) -> StepRecord:
    return StepRecord(
        t=step / 10,
        step=step,
        running=2,
        waiting=3,
        blocks_total=9,
        blocks_used=4,
        blocks_shared=1,
        blocks_cached=5,
        tokens=60,
        finished=7,
        total=12,
        prompt_tokens=100,
        cached_tokens=50,
        generated_tokens=30,
        preemptions=1,
    )


def run(num_steps: int, capacity: int) -> list[int]:
    timeline = Decimated[StepRecord](capacity)
    for step in range(1, num_steps + 1):
        timeline.add(step, record(step))
        assert len(timeline.items) <= capacity
    assert timeline.numbers == tuple(each.step for each in timeline.items)
    return list(timeline.numbers)


def test_a_short_run_keeps_every_step() -> None:
    assert run(10, capacity=10) == list(range(1, 11))


def test_one_too_many_halves_it() -> None:
    assert run(11, capacity=10) == [2, 4, 6, 8, 10]


@given(num_steps=st.integers(1, 3000), capacity=st.integers(2, 40))
def test_a_long_run_stays_bounded_and_even(num_steps: int, capacity: int) -> None:
    steps = run(num_steps, capacity)
    stride = 1
    while num_steps // stride > capacity:
        stride *= 2
    assert steps == list(range(stride, num_steps + 1, stride))
    if num_steps > capacity:
        assert len(steps) >= capacity // 2


def test_an_item_is_made_only_where_it_is_wanted() -> None:
    """The engine asks first, so that a step that is not kept costs nothing."""
    timeline = Decimated[int](capacity=4)
    for step in range(1, 200):
        wanted = timeline.wants(step)
        before = timeline.items
        timeline.add(step, step)
        if not wanted:
            assert timeline.items == before


def test_the_reports_form() -> None:
    assert record(5).to_dict() == {
        "t": 0.5,
        "step": 5,
        "running": 2,
        "waiting": 3,
        "blocks_used": 4,
        "blocks_shared": 1,
        "blocks_cached": 5,
        "tokens": 60,
    }


def test_a_fresh_one_is_empty() -> None:
    fresh = Decimated[int](3)
    assert fresh.items == fresh.numbers == ()
    with pytest.raises(AttributeError):
        fresh.items = ()  # type: ignore[misc]
