"""The forecast's own arithmetic; tests/job/test_plan_file.py holds the rest against runs."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pagedrun.paged.cache.cache_spec import KVCacheSpec, PoolShape
from pagedrun.paged.planning.forecast import Forecast
from pagedrun.paged.planning.forecast_sections import ForecastFigures
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.simulation import Simulator
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

BLOCK = 4


def make_plan(seed: int, num_rows: int = 60) -> Plan:
    draw = np.random.default_rng(seed)
    templates = [tuple(draw.integers(5, size=30).tolist()) for _ in range(4)]
    requests = [
        Request(
            index,
            templates[draw.integers(4)]
            + tuple(draw.integers(5, size=draw.integers(1, 20)).tolist()),
            SamplingParams(max_tokens=int(draw.integers(1, 30)), temperature=1.0),
        )
        for index in range(num_rows)
    ]
    return Plan(requests, PlanRules(BLOCK))


def blocks_of_batch(plan: Plan, begin: int, end: int) -> int:
    """Count by the tokens themselves what rows in run order hold at full length."""
    held: set[tuple[int, ...]] = set()
    private = 0
    for sequence in list(plan)[begin:end]:
        prompt = sequence.request.prompt_token_ids
        num_full = len(prompt) // BLOCK
        held.update(prompt[: (n + 1) * BLOCK] for n in range(num_full))
        private += -(-sequence.request.max_num_tokens // BLOCK) - num_full
    return len(held) + private


def forecast_of(plan: Plan, num_blocks: int, max_rows: int | None = None) -> ForecastFigures:
    config = EngineConfig(model=Path("."), block_size=BLOCK)
    kv = KVCacheSpec(num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")
    forecast = Forecast(config, [kv], [num_blocks])
    forecast.add(plan)
    simulation = Simulator(
        [plan],
        config,
        shapes=PoolShape.of_all([kv], [num_blocks]),
        bytes_read={None: 32},
        max_model_len=80,
        max_rows=max_rows,
    ).run()
    return forecast.to_dict(simulation, Counter(), len(plan))


@pytest.mark.parametrize("num_blocks", [30, 80])
def test_rows_at_once_fit_and_one_more_does_not(num_blocks: int) -> None:
    for seed in range(3):
        plan = make_plan(seed)
        fits = []
        for begin in range(len(plan)):
            end = begin
            while end < len(plan) and blocks_of_batch(plan, begin, end + 1) <= num_blocks:
                end += 1
            if end < len(plan):
                fits.append(end - begin)
        kv = forecast_of(plan, num_blocks)["kv"]
        assert kv["rows_at_once_everywhere"] == min(fits)
        assert kv["rows_at_once_typical"] == int(np.median(fits))


def test_all_rows_at_once_if_the_pool_is_large() -> None:
    assert forecast_of(make_plan(0), 5000)["kv"]["rows_at_once_everywhere"] == 60


def test_a_forecast_of_some_rows_says_so_and_finds_what_is_planned() -> None:
    plan = make_plan(0)
    found = forecast_of(plan, 500, max_rows=20)
    assert (found["rows"]["planned"], found["rows"]["simulated"]) == (60, 20)
    assert not found["rows"]["is_simulated_whole"]
    assert found["tokens"]["cached"] == plan.sharing.block_hit_tokens
    assert forecast_of(plan, 500)["rows"]["is_simulated_whole"]


def test_a_copy_of_a_row_computes_nothing() -> None:
    params = SamplingParams(max_tokens=2)
    prompts = [tuple(range(9)), tuple(range(20, 29)), tuple(range(9)), tuple(range(9))]
    plan = Plan([Request(i, prompt, params) for i, prompt in enumerate(prompts)], PlanRules(BLOCK))
    found = forecast_of(plan, 500)
    assert found["rows"]["is_simulated_whole"]
    tokens = found["tokens"]
    assert (tokens["prompt"], tokens["cached"], tokens["computed"]) == (36, 18, 18)


def test_a_nested_prefix_names_the_one_around_it() -> None:
    outer, inner = tuple(range(16)), tuple(range(20, 32))
    prompts = [outer + inner + (50 + i,) for i in range(5)] + [(*outer, 70 + i) for i in range(9)]
    params = SamplingParams(max_tokens=2, temperature=1.0)
    plan = Plan([Request(i, prompt, params) for i, prompt in enumerate(prompts)], PlanRules(BLOCK))
    told = forecast_of(plan, 500)["tree"]["top_prefixes"]
    shapes = [(each["tokens"], each["rows"], each["parent"]) for each in told]
    assert shapes == [(16, 14, None), (28, 5, 0)]
    assert [each["tokens_saved"] for each in told] == [13 * 16, 4 * 12]
