"""Rows of a plan that run apart get the bytes that they get in a run of the whole plan."""

import json
import pickle
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.run import Run
from pagedrun.paged.planning.plan import PlanRules
from pagedrun.paged.planning.plan_part import PlannedPart, PlanPart
from pagedrun.paged.planning.planner import PartPlanner, Planner, RequestLimits
from pagedrun.paged.planning.prefix_reuse import MIN_STATE_TOKENS
from pagedrun.paged.planning.windows import PlannedWindow
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path
from tests.support.engines import load_engine
from tests.support.families import save_tiny

Answers = dict[int, list[tuple[int, ...]]]


def demo_requests(engine: Engine) -> list[Request]:
    """Return requests that share directories of 20 to 60 lines; a few with several samples."""
    requests = []
    for index, line in enumerate(demo_prompts_path().read_text().splitlines()):
        system, user = (each["content"] for each in json.loads(line)["messages"])
        (ids,) = engine.loaded.tokenizer.encode_batch([f"{system}\n{user}"], False)
        params = SamplingParams(
            max_tokens=8 + index % 9, temperature=1.0, seed=1, n=1 + 2 * (index % 40 == 0)
        )
        requests.append(Request(index, tuple(ids), params))
    return requests


def planner_of(engine: Engine) -> Planner:
    return Planner(
        PlanRules(
            engine.config.block_size,
            engine.config.prefix_caching,
            max_blocks=10_000,
            read_once=engine.loaded.device.read_once,
            min_state_tokens=MIN_STATE_TOKENS if engine.loaded.model.state_specs() else None,
        ),
        RequestLimits(engine.max_model_len, engine.loaded.config.vocab_size),
    )


def run_windows(
    engine: Engine, requests: list[Request], windows: Iterator[PlannedWindow[PlannedPart]]
) -> tuple[Run, Answers]:
    """Run windows that were planned elsewhere, in an engine sized for all requests."""
    run = engine.start(requests, more=())
    run._windows = windows
    answers: Answers = {}
    for completion in run:
        assert completion.error is None
        assert completion.request.index not in answers
        answers[completion.request.index] = [each.token_ids for each in completion.outputs]
    run.scheduler.check()
    assert run.pool.num_held == 0
    return run, answers


def run_parts(
    engine: Engine, requests: list[Request], parts: list[PlanPart]
) -> tuple[Run, Answers]:
    """Run parts one after the other in one pool, each planned when it is its turn."""
    planner = PartPlanner()
    there = (pickle.loads(pickle.dumps(part)) for part in parts)
    return run_windows(engine, requests, map(planner.window, there))


@pytest.fixture(scope="module")
def demo() -> Engine:
    config = EngineConfig(model=demo_model_folder(), dtype="bfloat16", max_num_seqs=48)
    return load_engine(config)


@pytest.mark.heavy("same bytes: a run of parts beside a whole one")
def test_rows_of_parts_get_the_bytes_of_the_whole_plan(demo: Engine) -> None:
    requests = demo_requests(demo)
    planner = planner_of(demo)
    plan = planner.window(requests, has_next=False).plan
    whole = demo.start(requests)
    expected = {each.request.index: [output.token_ids for output in each.outputs] for each in whole}
    cuts = [0, 1, 30, 31, 90, 150, 151, 260, 300, len(plan)]
    parts = [plan.part(begin, end) for begin, end in pairwise(cuts)]
    draw = random.Random(3)
    shuffled = draw.sample(parts, len(parts))
    picked = np.array(sorted(draw.sample(range(len(plan)), 100)))
    rest = np.setdiff1d(np.arange(len(plan)), picked)
    for order in (shuffled, [plan.part_at(picked), plan.part_at(rest)]):
        _, answers = run_parts(demo, requests, order)
        assert answers == expected
    # Guards the above: planned alone, rows would be read together with others than in the plan.
    alone = planner_of(demo).window(list(parts[4].requests), has_next=False).plan
    by_row = {each.request.index: each.num_read_once_tokens for each in alone}
    assert by_row != {
        request.index: int(number)
        for request, number in zip(parts[4].requests, parts[4].num_read_once_tokens, strict=True)
    }


def test_a_prefix_that_parts_share_is_computed_once_in_a_pool(demo: Engine) -> None:
    """The parts of one replica, some of the file's, in the order of the plan."""
    requests = demo_requests(demo)
    plan = planner_of(demo).window(requests, has_next=False).plan
    parts = [plan.part(begin, min(begin + 28, len(plan))) for begin in range(0, len(plan), 28)]
    for mine in (parts, parts[1::3]):
        run, _ = run_parts(demo, requests, mine)
        together = plan.part_at(np.concatenate([part.places for part in mine]))
        planned = PartPlanner().window(together).plan.sharing
        assert run.scheduler.counts.cached_tokens >= planned.block_hit_tokens


@pytest.mark.parametrize("name", ["lfm2", "gemma3"])
def test_states_and_windows_are_kept_from_part_to_part(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    engine = load_engine(
        EngineConfig(model=tmp_path, dtype="float32", block_size=16, max_num_seqs=5),
    )
    draw = random.Random(1)
    stems = [tuple(draw.choices(range(256), k=150)) for _ in range(3)]
    requests = []
    for index in range(60):
        stem = stems[index % 3][: draw.choice([70, 100, 150])]
        params = SamplingParams(max_tokens=5, temperature=1.0, ignore_eos=True)
        requests.append(Request(index, (*stem, *draw.choices(range(256), k=9)), params))
    plan = planner_of(engine).window(requests, has_next=False).plan
    expected = {
        each.request.index: [output.token_ids for output in each.outputs]
        for each in engine.start(requests)
    }
    parts = [plan.part(begin, begin + 12) for begin in range(0, 60, 12)]
    for order in (parts, parts[::-1], [parts[3], parts[0], parts[4]]):
        run, answers = run_parts(engine, requests, order)
        assert answers == {index: expected[index] for index in answers}
        assert len(answers) == sum(map(len, order))
    if name == "lfm2":
        assert run.scheduler.states.figures(1)["found_states"] > 20
