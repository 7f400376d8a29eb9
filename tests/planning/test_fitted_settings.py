"""Settings that nobody gave suit the device and the file; those given stay as they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.sizing import fitted_to_device, fitted_to_plan
from pagedrun.paged.values.engine_config import FITTED, EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

MODEL = Path("model")
GB = 10**9


def test_a_processor_keeps_the_defaults() -> None:
    config = EngineConfig.fitting(model=MODEL)
    assert fitted_to_device(config, None) == config
    assert replace(config, fitted=()) == EngineConfig(MODEL)
    assert config.fitted == FITTED


@pytest.mark.parametrize(
    ("memory", "tokens"),
    [(16 * GB, 4096), (24 * GB, 8192), (48 * GB, 8192), (80 * GB, 16384), (150 * GB, 16384)],
)
def test_a_larger_memory_has_larger_steps(memory: int, tokens: int) -> None:
    config = fitted_to_device(EngineConfig.fitting(model=MODEL), memory)
    assert (config.block_size, config.max_num_batched_tokens) == (64, tokens)
    assert 0 < config.refill_share < 0.25


@pytest.mark.parametrize("name", FITTED)
def test_what_was_given_is_kept(name: str) -> None:
    given = {name: 0.5 if name == "refill_share" else 5}
    config = EngineConfig.fitting(model=MODEL, **given)
    config = fitted_to_device(config, 80 * GB)
    config = fitted_to_plan(config, 80 * GB, plan(90), 10_000)
    assert getattr(config, name) == given[name]


def plan(prompt: int, count: int = 8, shared: int = 0, size: int = 10) -> Plan:
    rows = [
        Request(i, (*range(shared), *[100 + i] * (prompt - shared)), SamplingParams(max_tokens=11))
        for i in range(count)
    ]
    return Plan(rows, PlanRules(size))


@pytest.mark.parametrize(
    ("num_blocks", "seats"),
    [
        (100, 64),  # 10 rows of 100 tokens: no fewer than 64 run, as many as find room
        (1000, 64),
        (2000, 192),
        (5000, 448),
        (50_000, 1024),
    ],
)
def test_seats_are_the_rows_that_the_pool_holds(num_blocks: int, seats: int) -> None:
    config = fitted_to_device(EngineConfig.fitting(model=MODEL, block_size=10), GB)
    assert fitted_to_plan(config, GB, plan(90), num_blocks).max_num_seqs == seats


def test_what_rows_share_takes_room_once() -> None:
    config = fitted_to_device(EngineConfig.fitting(model=MODEL, block_size=10), GB)
    alone = fitted_to_plan(config, GB, plan(90), 2000).max_num_seqs
    shared = fitted_to_plan(config, GB, plan(90, shared=80), 2000).max_num_seqs
    assert shared > 3 * alone


def test_a_file_without_rows_to_run_leaves_the_seats() -> None:
    config = fitted_to_device(EngineConfig.fitting(model=MODEL), GB)
    empty = Plan([], PlanRules(64))
    assert fitted_to_plan(config, GB, empty, 10).max_num_seqs == config.max_num_seqs
