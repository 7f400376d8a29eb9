"""Where a plan is cut into units, what is computed again for it, and what a part plans anew."""

import pickle
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.plan_part import (
    EarlierAnswers,
    PlannedPart,
    PlanPart,
    PlanTail,
    num_common,
)
from pagedrun.paged.planning.planner import PartPlanner, part_nodes, prefix_nodes
from pagedrun.paged.planning.prefix_tree import PROMPT_TOKENS_A_NEW_ONE
from pagedrun.paged.planning.simulation import Simulation, Simulator
from pagedrun.paged.planning.units import (
    LEAST_ROWS,
    MOST_ROWS,
    NEAR,
    ReplicaForecast,
    SplitPrefixes,
    unit_cuts,
)
from pagedrun.paged.planning.windows import PlannedWindow
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams

Prompts = list[tuple[int, ...]]


def plan_of(
    prompts: Prompts,
    size: int = 4,
    after: PlanTail | None = None,
    has_next: bool = False,
    earlier: EarlierAnswers | None = None,
    **rules: Any,
) -> Plan:
    params = SamplingParams(max_tokens=4, temperature=1.0)
    requests = [Request(3 * row, prompt, params) for row, prompt in enumerate(prompts)]
    return Plan(requests, PlanRules(size, **rules), after=after, has_next=has_next, earlier=earlier)


class Begun:
    """An earlier run that has begun every answer with the row's index."""

    is_whole = False

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids

    def find(self, request: Request, num_read_once_tokens: int) -> "Begun":
        return Begun(request.index)

    def tokens_at(self, index: int) -> tuple[int, ...]:
        return ()

    def completion(self, request: Request) -> Completion:
        raise NotImplementedError


def grouped(seed: int, num_rows: int, num_groups: int = 6) -> Prompts:
    """Return prompts of groups within groups."""
    draw = np.random.default_rng(seed)
    stems = [tuple(draw.integers(9, size=draw.integers(3, 40)).tolist()) for _ in range(num_groups)]
    return [
        (
            *stems[draw.integers(num_groups)],
            *draw.integers(3, size=draw.integers(0, 9)).tolist(),
            *draw.integers(99, size=5).tolist(),
        )
        for _ in range(num_rows)
    ]


def computed_by(part: PlanPart, has: tuple[int, ...] | None) -> int:
    """Return the tokens that a replica computes of a part, to the token, when its last row was
    `has`."""
    common = part.num_common_tokens.copy()
    if has is not None and len(part):
        common[0] = num_common(has, part.requests[0].prompt_token_ids)
    return int((part.num_tokens - common).sum())


# ── Cuts ────────────────────────────────────────────────────────────────────────────────────────


@given(
    num_rows=st.integers(0, 40_000),
    num_replicas=st.integers(1, 300),
    has_next=st.booleans(),
    seed=st.integers(0, 99),
)
def test_units_have_all_rows_and_the_sizes_that_they_may_have(
    num_rows: int, num_replicas: int, has_next: bool, seed: int
) -> None:
    common = np.random.default_rng(seed).integers(50, size=num_rows, dtype=np.int32)
    cuts = unit_cuts(common, num_replicas, has_next=has_next)
    assert cuts[0] == 0
    assert cuts[-1] == num_rows
    sizes = np.diff(cuts)
    assert (sizes > 0).all()
    assert (sizes <= MOST_ROWS * (1 + NEAR)).all()
    assert (sizes[:-1] >= LEAST_ROWS * (1 - NEAR)).all()
    assert np.array_equal(cuts, unit_cuts(common, num_replicas, has_next=has_next))


def test_units_get_smaller_only_where_nothing_follows() -> None:
    common = np.zeros(100_000, dtype=np.int32)
    last = np.diff(unit_cuts(common, 8))
    assert last[0] == 100_000 // 32
    assert last[-2] <= LEAST_ROWS * (1 + NEAR)
    assert (np.diff(last[:-1]) <= 0).all()
    others = np.diff(unit_cuts(common, 8, has_next=True))
    assert set(others[:-1].tolist()) == {100_000 // 32}


def test_a_unit_ends_at_the_edge_of_a_subtree_near_its_size() -> None:
    common = np.full(4_000, 500, dtype=np.int32)
    common[[0, 900, 1_090, 1_600]] = [0, 20, 100, 20]  # of 1,000 rows
    cuts = unit_cuts(common, 1).tolist()
    assert cuts[1] == 900  # what has least in common, not what is nearest
    common[1_100] = 20
    common[880] = 20
    assert unit_cuts(common, 1).tolist()[1] == 900  # the nearest of equal ones


# ── Prefixes that are computed again ────────────────────────────────────────────────────────────


@given(
    seed=st.integers(0, 999),
    num_rows=st.integers(1, 120),
    num_replicas=st.integers(1, 5),
    num_windows=st.integers(1, 3),
    num_cuts=st.integers(0, 12),
)
def test_no_assignment_of_units_computes_more_than_the_bound(
    seed: int, num_rows: int, num_replicas: int, num_windows: int, num_cuts: int
) -> None:
    """Units are handed out in order, to anybody; at one replica nothing is computed again."""
    draw = np.random.default_rng(seed)
    split, after = SplitPrefixes(num_replicas), None
    parts: list[PlanPart] = []
    distinct = 0
    for window in range(num_windows):
        plan = plan_of(grouped(seed % 7 + 10 * window, num_rows, 2), 1, after=after, has_next=True)
        after = plan.end
        inner = draw.choice(np.arange(1, num_rows + 1), min(num_cuts, num_rows), replace=False)
        cuts = np.unique(np.concatenate([[0], inner, [num_rows]]))
        split.add(plan.tree.common, cuts)
        distinct += plan.tree.num_distinct_tokens
        parts += [plan.part(begin, end) for begin, end in pairwise(cuts.tolist())]
    for _ in range(3):
        has: dict[int, tuple[int, ...]] = {}
        computed = 0
        for part in parts:
            replica = int(draw.integers(num_replicas))
            computed += computed_by(part, has.get(replica))
            has[replica] = part.requests[-1].prompt_token_ids
        assert computed <= distinct + split.num_tokens
    if num_replicas == 1:
        assert split.num_tokens == 0


def test_the_bound_is_reached_where_every_replica_takes_a_unit_of_each_split_prefix() -> None:
    stem = tuple(range(100))
    plan = plan_of([(*stem, 200 + row) for row in range(80)], 1)
    cuts = np.arange(0, 81, 10)
    for num_replicas, times in ((1, 0), (3, 2), (8, 7), (50, 7)):
        split = SplitPrefixes(num_replicas)
        split.add(plan.tree.common, cuts)
        assert split.num_tokens == 100 * times
        has: dict[int, tuple[int, ...]] = {}
        computed = 0
        for number, (begin, end) in enumerate(pairwise(cuts.tolist())):
            part = plan.part(begin, end)
            computed += computed_by(part, has.get(number % num_replicas))
            has[number % num_replicas] = part.requests[-1].prompt_token_ids
        assert computed == plan.tree.num_distinct_tokens + split.num_tokens


def test_whole_blocks_of_a_split_prefix_count() -> None:
    plan = plan_of([(*range(35), 200 + row) for row in range(8)], 16)
    split = SplitPrefixes(2, 16)
    split.add(plan.tree.common, np.array([0, 4, 8]))
    assert split.num_tokens == 32


def test_the_forecast_of_replicas_says_how_they_share_the_work() -> None:
    plan = plan_of(grouped(1, 2_000), 1)
    efficiency = {}
    for num_replicas in (1, 4, 40):
        forecast = ReplicaForecast(num_replicas, 1, prefix_caching=True)
        forecast.add(plan, has_next=False)
        figures = forecast.figures()
        assert figures["units"] == len(unit_cuts(plan.tree.common, num_replicas)) - 1
        distinct, again = plan.tree.num_distinct_tokens, figures["split_prefix_tokens"]
        assert figures["computed_at_most"] == distinct + again
        efficiency[num_replicas] = figures["expected_efficiency"]
    assert efficiency[1] == 1.0
    assert 0.9 < efficiency[4] < 1
    assert efficiency[40] < 0.9  # 31 units of 64 rows
    empty = ReplicaForecast(3, 1, prefix_caching=True)
    assert empty.figures()["expected_efficiency"] == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_the_forecast_of_replicas_counts_what_each_computes(seed: int) -> None:
    """To the token: a replica finds what its last row has in common with the next of its units."""
    plan, num_replicas = plan_of(grouped(seed, 900), 1), 3
    has: dict[int, tuple[int, ...]] = {}
    busy = [0] * num_replicas
    for begin, end in pairwise(unit_cuts(plan.tree.common, num_replicas).tolist()):
        part, replica = plan.part(begin, end), busy.index(min(busy))
        busy[replica] += computed_by(part, has.get(replica))
        busy[replica] += PROMPT_TOKENS_A_NEW_ONE * 4 * len(part)
        has[replica] = part.requests[-1].prompt_token_ids
    work = plan.tree.num_distinct_tokens + PROMPT_TOKENS_A_NEW_ONE * 4 * len(plan)
    forecast = ReplicaForecast(num_replicas, 1, prefix_caching=True)
    forecast.add(plan, has_next=False)
    assert forecast.figures()["expected_efficiency"] == work / (num_replicas * max(busy))


# ── Parts ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keeps_states", [False, True])
def test_a_part_has_the_numbers_of_the_whole_plan(keeps_states: bool) -> None:
    """All that touches bytes; a part of all rows is the plan itself."""
    read_once = ReadOnce(4, 1)
    plan = plan_of(
        grouped(2, 90),
        earlier=Begun(),
        read_once=read_once,
        min_state_tokens=8 if keeps_states else None,
    )
    whole = {each.request.index: each for each in plan}
    for begin, end in ((0, 90), (0, 1), (13, 57), (57, 90), (40, 40)):
        part = pickle.loads(pickle.dumps(plan.part(begin, end)))
        rows = list(PartPlanner().window(part, has_next=False).plan)
        assert [each.place for each in rows] == list(range(begin, end))
        for each in rows:
            same = whole[each.request.index]
            assert each.request == same.request
            assert each.num_read_once_tokens == same.num_read_once_tokens
            assert each.num_shared_tokens == same.num_shared_tokens
            assert each.group == same.group
            assert each.begun_token_ids == same.begun_token_ids == (each.request.index,)
        if (begin, end) == (0, 90):
            assert rows == list(plan)
    assert any(each.num_read_once_tokens for each in whole.values())


def test_a_part_is_sent_with_each_shared_token_once() -> None:
    stem = tuple(range(3_000, 7_000))
    plan = plan_of([(*stem, 200 + row) for row in range(64)])
    part = plan.part(10, 60)
    sent = pickle.dumps(part)
    assert len(sent) < 4 * 4_050 + 10_000
    there = pickle.loads(sent)
    assert there.requests == part.requests
    assert there.num_common_tokens.tolist() == part.num_common_tokens.tolist()


def test_rows_picked_from_a_plan_have_in_common_what_they_have() -> None:
    plan = plan_of(grouped(3, 120))
    draw = np.random.default_rng(1)
    for _ in range(20):
        places = draw.choice(120, size=draw.integers(1, 60), replace=False)
        part = plan.part_at(places)
        prompts = [request.prompt_token_ids for request in part.requests]
        expected = [0, *(num_common(one, two) for one, two in pairwise(prompts))]
        assert part.num_common_tokens.tolist() == expected


@given(one=st.lists(st.integers(0, 2), max_size=9), two=st.lists(st.integers(0, 2), max_size=9))
@settings(deadline=None)
def test_tokens_in_common_are_counted(one: list[int], two: list[int]) -> None:
    pairs = zip(one, two, strict=False)
    least = min(len(one), len(two))
    expected = next((place for place, (a, b) in enumerate(pairs) if a != b), least)
    assert num_common(tuple(one), tuple(two)) == expected


def test_nothing_is_kept_for_a_row_that_is_elsewhere() -> None:
    plan = plan_of([(*range(8), 100 + row) for row in range(6)])
    alone = PlannedPart(plan.part(2, 3))
    assert [each.num_keep_blocks for each in alone] == [0]
    assert alone.sharing.achievable_hit_tokens == 0
    kept = PlannedPart(plan.part(2, 3), has_next=True)
    assert [each.num_keep_blocks for each in kept] == [2]
    behind = PlannedPart(plan.part(4, 6), kept.end)
    assert behind.sharing.block_hit_tokens == 16
    assert [each.num_common_tokens for each in behind] == [8, 8]
    assert all(len(each.block_keys) >= 2 for each in behind)


class PartSimulator(Simulator):
    """Simulates parts, which have no tree; what attention reads is not counted."""

    def _note_plan(self, plan: PlannedPart) -> None:
        self._num_total += len(plan)
        self._statistics.note_sharing(plan.sharing)
        read_once = plan.rows.num_read_once_tokens.astype(np.int32)
        self._reads.append(plan.num_common_tokens, read_once)


def simulate_parts(parts: list[PlanPart], size: int) -> tuple[Simulation, int]:
    """Return what a run of the parts comes to, in a pool with room for everything, and what they
    were planned to find."""
    from pathlib import Path

    from pagedrun.paged.cache.cache_spec import KVCacheSpec, PoolShape
    from pagedrun.paged.values.engine_config import EngineConfig

    spec = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=2, dtype="float32")
    planner, planned = PartPlanner(), 0

    def plans() -> Iterator[PlannedPart]:
        nonlocal planned
        for part in parts:
            window: PlannedWindow[PlannedPart] = planner.window(part)
            planned += window.plan.sharing.block_hit_tokens
            yield window.plan

    config = EngineConfig(
        model=Path("."), block_size=size, max_num_seqs=4, max_num_batched_tokens=64
    )
    simulation = PartSimulator(
        plans(),  # type: ignore[arg-type]
        config,
        shapes=PoolShape.of_all([spec], [400]),
        bytes_read={None: 1},
        max_model_len=250,
    ).run()
    return simulation, planned


@given(seed=st.integers(0, 99), num_parts=st.integers(1, 9), is_shuffled=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_pool_finds_what_parts_were_planned_to_find(
    seed: int, num_parts: int, is_shuffled: bool
) -> None:
    """In any order of parts: what the last row of one leaves is there for the first of the next."""
    plan = plan_of(grouped(seed, 60))
    draw = np.random.default_rng(seed)
    cuts = np.unique(np.concatenate([[0, 60], draw.integers(60, size=num_parts)])).tolist()
    parts = [plan.part(begin, end) for begin, end in pairwise(cuts)]
    if is_shuffled:
        parts = [parts[place] for place in draw.permutation(len(parts))]
    simulation, planned = simulate_parts(parts, 4)
    assert simulation.num_rows == 60
    whole_blocks = simulation.counts.cached_tokens - simulation.counts.partial_hit_tokens
    assert whole_blocks == planned
    if not is_shuffled:
        assert planned == plan.sharing.block_hit_tokens


def test_a_part_without_rows_changes_nothing_for_the_next() -> None:
    """A replica may be given rows of which all are answered by then."""
    plan = plan_of([(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 7)])
    planner = PartPlanner()
    planner.window(plan.part(0, 1))
    assert len(planner.window(plan.part(0, 0)).plan) == 0
    assert planner.window(plan.part(1, 2)).plan.num_common_tokens.tolist() == [5]


def test_the_nodes_of_a_part_are_those_of_its_rows() -> None:
    prompts = grouped(5, 80)
    plan = plan_of(prompts)
    assert sorted(map(tuple, _rows(prefix_nodes(plan)))) == sorted(
        map(tuple, _rows(part_nodes(plan.part(0, 80))))
    )
    part = plan.part(20, 50)
    alone = plan_of([request.prompt_token_ids for request in part.requests])
    theirs, own = _rows(part_nodes(part)), _rows(prefix_nodes(alone))
    assert sorted(map(tuple, theirs)) == sorted(map(tuple, own))
    assert {request.index for request in part.requests} >= set(part_nodes(part).row.tolist())


def _rows(nodes: object) -> list[tuple[int, ...]]:
    return [
        (each["start"], each["end"], each["rows"], each["saved"])
        for each in nodes.records()  # type: ignore[attr-defined]
    ]
