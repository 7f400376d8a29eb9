"""StatePoints: which states are kept, that whoever begins with one finds it, and what it costs."""

import random

import numpy as np
import pytest

from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.prefix_reuse import StatePoints
from pagedrun.paged.values.planned_request import BranchPoint
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

SIZE = 4


def counts(points: BranchPoint | None) -> list[int]:
    found = []
    while points is not None:
        found.append(points.num_blocks)
        points = points.next
    return found


def points_of(common: list[int], lengths: list[int], min_tokens: int = 1) -> StatePoints:
    limits = np.array(lengths, dtype=np.int64) - 1
    return StatePoints.of(np.array(common, dtype=np.int32), limits, SIZE, min_tokens=min_tokens)


def test_a_prompt_leaves_a_state_where_later_ones_leave_it() -> None:
    points = points_of([0, 10, 17, 9, 3], [30, 30, 30, 30, 30])
    assert points.begins == [0, 2, 4, 2, 0]
    assert [counts(each) for each in points.left] == [[2], [4, 2], [2], [], []]
    assert points.depth == 2


def test_a_prompt_that_is_the_beginning_of_another_computes_its_last_token() -> None:
    points = points_of([0, 8, 8], [20, 8, 20])
    assert points.begins == [0, 1, 2]
    assert counts(points.left[0]) == [2, 1]


def test_what_spares_little_begins_at_the_level_above() -> None:
    points = points_of([0, 40, 50, 63, 40], [90] * 5, min_tokens=16)
    assert points.begins == [0, 10, 10, 15, 10]
    assert [counts(each) for each in points.left] == [[10], [10], [15, 10], [10], []]


def test_a_scored_prompt_begins_with_nothing() -> None:
    params = [SamplingParams(max_tokens=3, prompt_logprobs=each) for each in (None, 1)]
    requests = [Request(index, (7,) * 20 + (index,), each) for index, each in enumerate(params)]
    plan = Plan(requests, PlanRules(SIZE, min_state_tokens=1))
    begins = {each.request.index: each.num_state_blocks for each in plan}
    assert begins[1] == 0


def test_the_next_window_begins_with_what_the_last_row_has_left_open() -> None:
    params = SamplingParams(max_tokens=3)
    trunk = tuple(range(40))
    windows = [
        [Request(0, (*trunk, 1), params), Request(1, (*trunk, 2), params)],
        [Request(2, (*trunk, 3), params), Request(3, (*trunk, 4), params)],
    ]
    first = Plan(windows[0], PlanRules(SIZE, min_state_tokens=1), has_next=True)
    second = Plan(windows[1], PlanRules(SIZE, min_state_tokens=1), after=first.end)
    assert [each.num_state_blocks for each in (*first, *second)] == [0, 10, 10, 10]
    assert [counts(each.state_points) for each in first] == [[10], [10]]


@pytest.mark.parametrize("seed", range(30))
def test_every_row_finds_the_state_that_it_is_to_begin_with(seed: int) -> None:
    """Rows computed one by one, from prompts alone: no row begins with a state that no row before
    it has left, and none computes more than its own tokens and those that a state must spare."""
    pick = random.Random(seed)
    trunks = [pick.choices(range(2), k=120) for _ in range(3)]
    prompts = [
        (*pick.choice(trunks)[: pick.randint(0, 120)], *pick.choices(range(2), k=20))
        for _ in range(40)
    ]
    params = SamplingParams(max_tokens=3, temperature=1.0)
    requests = [Request(index, prompt, params) for index, prompt in enumerate(prompts)]
    min_tokens = pick.choice([1, 8, 64])
    plan = Plan(requests, PlanRules(SIZE, min_state_tokens=min_tokens))
    states: set[tuple[int, ...]] = set()
    num_open: list[int] = []
    for planned in plan:
        prompt = planned.request.prompt_token_ids
        begin = planned.num_state_blocks * SIZE
        assert not begin or prompt[:begin] in states
        assert begin < len(prompt)
        num_own = len(prompt) - planned.num_common_tokens
        assert len(prompt) - begin <= num_own + max(min_tokens - 1, SIZE)
        # What no later row begins with is not kept.
        wanted = {prompt[: count * SIZE] for count in counts(planned.state_points)}
        passed = {state for state in wanted if len(state) > begin}
        assert wanted - passed <= states
        states = wanted
        num_open.append(len(states))
    assert plan.states is not None
    assert max(num_open) == plan.states.depth
