"""SlotSizer: how many slots a file needs, how many the memory has, and what blocks are left."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateArray, StateSpec
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.pool_sizing import DRAFT_SLOTS, SlotSizer
from pagedrun.paged.planning.sizing import RunSizing
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.tiny_models import published_config

BUDGET = MemoryBudget(total=1_000_000, available=900_000, pool=800_000)
CONFIG = EngineConfig(model=Path(), max_num_seqs=8, swap_space_bytes=6_000)


def plan_of(num_rows: int, **params: Any) -> Plan:
    """Rows that have 200 tokens in common, each with four of its own."""
    given = SamplingParams(temperature=1.0, **params)
    rows = [Request(i, (*range(200), *(1000 + i,) * 4), given) for i in range(num_rows)]
    return Plan(rows, PlanRules(16, min_state_tokens=64))


@pytest.mark.parametrize(
    ("num_rows", "params", "num_slots"),
    [
        (1, {}, 2),  # one to read and one to write
        (3, {}, 3 + 2),  # and the level that they share, and one that is read for the last time
        (100, {}, 8 + 2),
        (100, {"n": 3}, 8 + 4 + 2),  # half of them may have to go on from their parents
    ],
)
def test_slots_are_for_those_that_run_and_the_levels_of_the_tree(
    num_rows: int, params: dict[str, Any], num_slots: int
) -> None:
    sizes = SlotSizer(CONFIG, 1000, BUDGET).sizes(plan_of(num_rows, **params), is_whole=True)
    assert sizes is not None
    assert (sizes.num_slots, sizes.num_host_slots, sizes.host_bytes) == (num_slots, 3, 3000)


def test_beams_take_their_steps_together() -> None:
    rows = [Request(0, tuple(range(40)), SamplingParams(beam_width=12, ignore_eos=True))]
    plan = Plan(rows, PlanRules(16, min_state_tokens=64))
    sizes = SlotSizer(CONFIG, 1000, BUDGET).sizes(plan, is_whole=True)
    assert sizes is not None
    assert sizes.num_slots >= 2 * 12


def test_drafts_have_slots_as_far_as_memory_lasts() -> None:
    for pool, num_slots in ((800_000, 5 + DRAFT_SLOTS), (16_000, 8)):
        sizer = SlotSizer(CONFIG, 1000, replace(BUDGET, pool=pool), may_draft=True)
        sizes = sizer.sizes(plan_of(3), is_whole=True)
        assert sizes is not None
        assert sizes.num_slots == num_slots
    opaque = SlotSizer(CONFIG, 1000, BUDGET, are_opaque=True, may_draft=True)
    assert opaque.most() == SlotSizer(CONFIG, 1000, BUDGET, are_opaque=True).most()


@pytest.mark.parametrize(
    ("memory_bytes", "reproducible", "num_for_drafts"),
    [
        (None, False, DRAFT_SLOTS),  # a processor, whose rows do not depend on their batch
        (10**9, False, 0),
        (10**9, True, DRAFT_SLOTS),
    ],
)
def test_slots_for_drafts_are_there_where_a_run_may_draft(
    memory_bytes: int | None, reproducible: bool, num_for_drafts: int
) -> None:
    sizing = RunSizing(
        replace(CONFIG, reproducible=reproducible),
        published_config("tiny").network,
        "float32",
        [KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=2, dtype="float32")],
        [StateSpec((StateArray("state", (250,), "float32"),))],
        BUDGET,
        memory_bytes,
        max_model_len=300,
        longest=300,
    )
    slots = sizing.sizes(plan_of(3), is_whole=True).slots
    assert slots is not None
    assert slots.num_slots == 3 + 2 + num_for_drafts


def test_what_later_windows_need_is_not_known() -> None:
    sizes = SlotSizer(CONFIG, 1000, BUDGET).sizes(plan_of(1), is_whole=False)
    assert sizes is not None
    assert sizes.num_slots == 8 + 4 + 16


def test_blocks_have_what_states_leave() -> None:
    sizer = SlotSizer(CONFIG, 1000, BUDGET)
    assert sizer.rest == replace(BUDGET, available=872_000, pool=772_000)
    assert sizer.max_beam_width == 14
    short = SlotSizer(CONFIG, 1000, replace(BUDGET, pool=13_000))
    assert short.rest.pool == 13_000 - 6_000
    sizes = short.sizes(plan_of(100), is_whole=True)
    assert sizes is not None
    assert sizes.num_slots == 6


def test_a_model_without_states_keeps_its_memory() -> None:
    sizer = SlotSizer(CONFIG, 0, BUDGET)
    assert sizer.rest == BUDGET
    assert sizer.sizes(plan_of(3), is_whole=True) is None
    assert sizer.max_beam_width is None


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="states of recurrent layers: one sequence takes 2000"):
        SlotSizer(CONFIG, 1000, replace(BUDGET, pool=3_999))
