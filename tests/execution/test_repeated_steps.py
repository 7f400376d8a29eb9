"""Replayed decode steps have the bytes of computed ones, in every family."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch

from pagedrun.kernels.cpu.recording import Recording
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.repeated_steps import (
    MAX_KEPT_ROWS,
    MAX_ROWS,
    MAX_SHAPES,
    STEPS_BEFORE,
    RepeatedSteps,
)
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.engines import ANY_PREFIX, load_engine
from tests.support.every_pair import long_except
from tests.support.families import TINY, save_tiny
from tests.support.mixture_families import MIXTURES
from tests.support.tiny_models import tiny_engine

NUM_TOKENS = 12
WITH_EXPERTS = {*MIXTURES, "gpt_oss", "gemma4-moe"} - {"granitemoehybrid-dense"}
KINDS = ["granite", "gemma2", "gemma4-e", "gpt_oss", "glm4_moe"]
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each replay."""
    found: list[int] = []
    replay = Recording.replay

    def counted(self: Recording[Any]) -> Any:
        found.append(1)
        return replay(self)

    monkeypatch.setattr(Recording, "replay", counted)
    return found


def answers(engine: Engine, prompts: Sequence[Sequence[int]], *params: SamplingParams) -> list[Any]:
    """Return tokens and log-probabilities, in the order of the prompts."""
    requests = [
        Request(index, tuple(prompt), params[index % len(params)])
        for index, prompt in enumerate(prompts)
    ]
    done = sorted(engine.start(requests), key=lambda each: each.request.index)
    return [each.outputs for each in done]


@pytest.mark.invariant("same bytes replayed")
@pytest.mark.parametrize("name", long_except([*TINY, *MIXTURES], KINDS))
def test_a_family_has_the_same_bytes(name: str, tmp_path: Path, replays: list[int]) -> None:
    save_tiny({**TINY, **MIXTURES}[name], tmp_path, torch.bfloat16)
    config = EngineConfig.fitting(model=tmp_path, dtype="bfloat16", device="cpu", speculate="off")
    engine = load_engine(config)
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate((5, 60, 19))]
    replayed = answers(engine, prompts, PARAMS)
    # The first token of a row is sampled from its prompt. Experts have rows by their values.
    assert len(replays) == (0 if name in WITH_EXPERTS else NUM_TOKENS - 1 - STEPS_BEFORE - 1)
    replays.clear()
    assert answers(engine.reconfigured(enforce_eager=True), prompts, PARAMS) == replayed
    assert not replays


def same_when_eager(
    engine: Engine, prompts: Sequence[Sequence[int]], *params: SamplingParams
) -> None:
    eager = engine.reconfigured(enforce_eager=True)
    assert answers(engine, prompts, *params) == answers(eager, prompts, *params)


def test_rows_that_share_a_prefix_and_end_one_after_the_other(replays: list[int]) -> None:
    """Groups of rows, and the blocks of their tables, differ between steps of one shape."""
    policy = RunPolicy(read_once=ANY_PREFIX)
    tiny = tiny_engine(dtype="bfloat16", device="cpu")
    engine = Engine(tiny.config, tiny.loaded, policy)
    shared = list(range(2 * PARTITION_TOKENS))
    prompts = [[*shared[: (1 + i % 2) * PARTITION_TOKENS], *range(i, i + 9)] for i in range(36)]
    ends = [replace(PARAMS, max_tokens=length) for length in (9, 17, 30)]
    same_when_eager(engine, prompts, *ends)
    assert len(replays) > 3


@pytest.mark.parametrize("mode", long_except(["swap", "recompute"], ["swap"]))
def test_rows_that_give_way(mode: str, replays: list[int]) -> None:
    engine = tiny_engine(
        dtype="bfloat16", device="cpu", block_size=16, num_blocks=20, preemption_mode=mode
    )
    prompts = [[(11 * i + j) % 256 for j in range(10 + i)] for i in range(8)]
    same_when_eager(engine, prompts, replace(PARAMS, max_tokens=60))
    assert replays


def test_tables_that_grow(replays: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.paged.execution.repeated_steps.TABLE_UNIT", 2)
    engine = tiny_engine(dtype="float32", device="cpu", block_size=16, speculate="off")
    same_when_eager(engine, [[1, 2, 3], [4, 5]], replace(PARAMS, max_tokens=80))
    # A wider table is another shape: at 3, 33 and 65 tokens.
    assert len(replays) == 79 - 3 * (STEPS_BEFORE + 1)


def test_an_int8_cache(replays: list[int]) -> None:
    engine = tiny_engine(dtype="bfloat16", device="cpu", kv_cache_dtype="int8")
    same_when_eager(engine, [[1, 2, 3], [4, 5]], PARAMS)
    assert replays


def test_scored_tokens_are_computed(replays: list[int]) -> None:
    engine = tiny_engine(dtype="bfloat16", device="cpu")
    same_when_eager(engine, [[1, 2, 3]], replace(PARAMS, prompt_logprobs=2))
    assert replays


class Recorded:
    """A recorded step, which a replay leaves as it is."""

    can_replay = True

    def __init__(self, result: Any) -> None:
        self.result = result

    def replay(self) -> Any:
        return self.result


class Recorder(Backend):
    """Notes recorded steps for as long as somebody keeps them."""

    records = True

    def __init__(self) -> None:
        self._kept = WeakSet[Recorded]()

    def record(self, step: Callable[[], Any]) -> Recorded:
        recorded = Recorded(step())
        self._kept.add(recorded)
        return recorded

    @property
    def kept_rows(self) -> list[int]:
        return sorted(len(each.result.logits) for each in self._kept)


class TestMemoryOfRecordings:
    """A recording keeps the memory of its results: it lives by what is known of later steps."""

    @pytest.fixture
    def recorder(self) -> Recorder:
        return Recorder()

    @pytest.fixture
    def steps(self, recorder: Recorder) -> RepeatedSteps:
        model: Any = SimpleNamespace(hidden=lambda batch, _: batch.input_ids, head=torch.clone)
        cache: Any = None
        return RepeatedSteps(model, cache, recorder)

    def compute(self, steps: RepeatedSteps, num_rows: int, num_prefill_tokens: int = 0) -> None:
        ids = torch.zeros(num_rows, dtype=torch.int64)
        batch = ForwardBatch(ids, ids, num_prefill_tokens, (), ids)
        steps.logits(batch, (), will_repeat=True, with_states=False)

    def test_the_shape_that_was_unused_for_longest_gives_way(
        self, steps: RepeatedSteps, recorder: Recorder
    ) -> None:
        for num_rows in [*range(1, MAX_SHAPES + 1), 1, 20, 21]:
            self.compute(steps, num_rows)
        assert recorder.kept_rows == [1, *range(4, MAX_SHAPES + 1), 20, 21]

    def test_those_of_many_rows_are_freed_before_a_prompt(
        self, steps: RepeatedSteps, recorder: Recorder
    ) -> None:
        for num_rows in (1, MAX_KEPT_ROWS, MAX_KEPT_ROWS + 1, MAX_ROWS):
            self.compute(steps, num_rows)
        assert recorder.kept_rows == [1, MAX_KEPT_ROWS, MAX_KEPT_ROWS + 1, MAX_ROWS]
        self.compute(steps, 5, num_prefill_tokens=5)
        assert recorder.kept_rows == [1, MAX_KEPT_ROWS]
