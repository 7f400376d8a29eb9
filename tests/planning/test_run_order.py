"""The order of rows with priorities, and of rows that are drawn: what it changes and what not."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.prefix_tree import (
    MAX_EXTRA_SHARE,
    PROMPT_TOKENS_A_NEW_ONE,
    RandomOrder,
)
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

PAIRS = ReadOnce(2, 4)
SAMPLED = SamplingParams(max_tokens=4, temperature=1.0)  # none is a duplicate
ROWS = st.lists(
    st.tuples(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=12), st.integers(-1, 1)),
    max_size=16,
)


def requests_of(rows: list[tuple[list[int], int]]) -> list[Request]:
    return [
        Request(index, tuple(prompt), SAMPLED, priority=priority)
        for index, (prompt, priority) in enumerate(rows)
    ]


def planned(requests: list[Request], seed: int | None = None) -> Plan:
    return Plan(requests, PlanRules(2, read_once=PAIRS), sample_seed=seed)


def num_common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    length = min(len(one), len(two))
    return next((i for i in range(length) if one[i] != two[i]), length)


@given(rows=ROWS, seed=st.none() | st.integers(0, 3))
def test_another_order_changes_no_decision_about_bytes(
    rows: list[tuple[list[int], int]], seed: int | None
) -> None:
    """What is read once is decided from all rows, whoever runs first."""
    plain = planned(requests_of([(prompt, 0) for prompt, _ in rows]))
    decided = {each.request.index: each.num_read_once_tokens for each in plain}
    shared = {each.request.index: each.num_shared_tokens for each in plain}
    ordered = list(planned(requests_of(rows), seed))
    assert {each.request.index: each.num_read_once_tokens for each in ordered} == decided
    assert {each.request.index: each.num_shared_tokens for each in ordered} == shared


@given(rows=ROWS, seed=st.none() | st.integers(0, 3))
def test_lower_numbers_run_first_and_the_plan_knows_its_neighbours(
    rows: list[tuple[list[int], int]], seed: int | None
) -> None:
    """Of a neighbour that it does not have, a row would pin and find blocks that are not there."""
    ordered = list(planned(requests_of(rows), seed))
    assert len(ordered) == len(rows)
    for before, after in pairwise(ordered):
        assert before.request.priority <= after.request.priority
        one, two = before.request.prompt_token_ids, after.request.prompt_token_ids
        assert after.num_common_tokens == num_common(one, two)
        assert before.num_keep_blocks == num_common(one, two) // 2


@given(rows=ROWS)
def test_rows_of_one_priority_keep_the_order_in_which_they_share(
    rows: list[tuple[list[int], int]],
) -> None:
    walked = [each.request.index for each in planned(requests_of([(p, 0) for p, _ in rows]))]
    indices = [each.request.index for each in planned(requests_of(rows))]
    for wanted in (-1, 0, 1):
        members = [index for index in indices if rows[index][1] == wanted]
        assert members == [index for index in walked if rows[index][1] == wanted]


def test_a_question_that_several_ask_runs_for_the_most_urgent() -> None:
    """It would wait for the others if the first to ask decided."""
    params = SamplingParams(max_tokens=4)
    prompts = [((1, 2), 0), ((3, 4), 0), ((5, 6), 0), ((3, 4), -1)]
    requests = [Request(i, p, params, priority=q) for i, (p, q) in enumerate(prompts)]
    plan = Plan(requests, PlanRules(2))
    assert next(iter(plan)).request.index == 1
    assert [each.index for each in plan.duplicates.asked[1]] == [1, 3]
    answered = Plan(requests, PlanRules(2), done={3})
    assert next(iter(answered)).request.index == 0


def test_drawn_rows_are_a_sample_of_all_groups_at_any_moment() -> None:
    """In the order of sharing the first eighth would be of one group of eight."""
    system = tuple(range(64))
    rows = [((*system, group, number), 0) for group in range(8) for number in range(100, 228)]
    requests = requests_of([(list(prompt), priority) for prompt, priority in rows])
    order = [each.request.index for each in planned(requests, seed=5)]
    assert sorted(order) == list(range(1024))
    counts = np.bincount([index // 128 for index in order[:128]], minlength=8)
    assert counts.min() >= 6, counts
    assert counts.max() <= 28, counts
    assert order != [each.request.index for each in planned(requests, seed=6)]


def test_drawing_costs_little_of_what_sharing_saves() -> None:
    """Sixteen long documents must not be computed again for each of their questions."""
    rows = [
        ([*range(group, 600 + group), number], 0)
        for group in range(0, 16_000, 1000)
        for number in range(50)
    ]
    requests = requests_of(rows)
    shared, drawn = planned(requests).tree, planned(requests, seed=5).tree
    extra = drawn.num_distinct_tokens - shared.num_distinct_tokens
    work = shared.num_distinct_tokens + PROMPT_TOKENS_A_NEW_ONE * 4 * len(rows)
    assert extra <= MAX_EXTRA_SHARE * work
    assert drawn.order[0] // 50 != drawn.order[-1] // 50


def test_rows_keep_their_draw_when_a_run_is_resumed() -> None:
    """Else two runs with a deadline would together be no fair sample."""
    requests = requests_of([([index, 1], 0) for index in range(64)])
    order = [each.request.index for each in planned(requests, seed=5)]
    done = set(order[:20])
    rest = Plan(requests, PlanRules(2), done=done, sample_seed=5)
    assert [each.request.index for each in rest] == order[20:]


def test_rows_keep_their_draw_beside_rows_that_are_refused() -> None:
    """What is refused with one pool or context may run with another."""
    requests = requests_of([([index, 1], 0) for index in range(64)])
    every = RandomOrder.of(requests, 5).values
    left = [request for request in requests if request.index % 5 != 2]
    assert np.array_equal(
        RandomOrder.of(left, 5).values, every[[request.index for request in left]]
    )
    assert len(set(every.tolist())) == 64
