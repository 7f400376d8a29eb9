"""Runs in one pass: keys and values of a layer are kept while it computes, with the same bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.run import Run
from pagedrun.paged.planning.passes import TRANSIENT_STEP_TOKENS
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair, long_except
from tests.support.families import TINY, save_tiny
from tests.support.mixture_families import MIXTURES, ONE_OF_EACH_KIND
from tests.support.streamed import streamed_by, streaming

LABEL = SamplingParams(max_tokens=1, logprobs=3, ignore_eos=True)
SCORED = replace(LABEL, prompt_logprobs=1)
SHARED = [(11 * i) % 256 for i in range(150)]
# In all layers a step takes more, in one layer much less.
POOL = 2**20


def requests(params: SamplingParams, count: int = 30) -> list[Request]:
    """Rows of which some share a prefix, and some are long."""
    prompts = [
        [*(SHARED if i % 3 else []), *((7 * i + j) % 256 for j in range(5 + 40 * (i % 4)))]
        for i in range(count)
    ]
    return [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]


def answers(run: Run) -> list[Any]:
    done = sorted(run, key=lambda each: each.request.index)
    assert all(each.error is None for each in done)
    return [(each.outputs, each.prompt_logprobs, each.scores) for each in done]


def in_one_pass(engine: Engine, asked: Sequence[Request], pool: int = POOL) -> list[Any]:
    run = engine.reconfigured(kv_cache_memory_bytes=pool).start(asked)
    assert run.cache.is_transient
    assert run.cache.num_bytes <= pool
    return answers(run)


@pytest.mark.invariant("same bytes whatever runs beside a row")
@every_pair(
    in_turn="dtype",
    params=[LABEL, SCORED, replace(LABEL, temperature=1.0, n=3)],
    dtype=["float32", "bfloat16"],
)
def test_rows_have_the_same_bytes(
    dtype: str, params: SamplingParams, make_model: MakeModel
) -> None:
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    engine = load_engine(EngineConfig.fitting(model=model, dtype=dtype, device="cpu"))
    asked = requests(params)
    run = engine.start(asked)
    assert not run.cache.is_transient
    assert in_one_pass(engine, asked) == answers(run)


# Models with windows, or with layers that read the keys of others, keep all keys and values.
FAMILIES = [name for name in (*TINY, *MIXTURES) if "moe" in name or name in ("granite", "olmo2")]


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("name", long_except(FAMILIES, ONE_OF_EACH_KIND))
def test_families_have_the_same_bytes(name: str, tmp_path: Path) -> None:
    save_tiny({**TINY, **MIXTURES}[name], tmp_path, torch.float32)
    engine = load_engine(EngineConfig.fitting(model=tmp_path, dtype="float32", device="cpu"))
    asked = requests(SCORED)
    run = engine.reconfigured(kv_cache_memory_bytes=2**19).start(asked)
    if not run.cache.is_transient:
        pytest.skip("a window, or keys of another layer")
    assert answers(run) == answers(engine.start(asked))


def test_steps_of_whole_prompts(make_model: MakeModel) -> None:
    """Prompts longer than a step are one of their own; others fill a step."""
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    config = EngineConfig(
        model=model, dtype="float32", device="cpu", max_num_batched_tokens=100, max_num_seqs=5
    )
    engine, asked = load_engine(config), requests(SCORED)
    assert in_one_pass(engine, asked, 2**18) == answers(engine.start(asked))


def test_pieces_of_a_step(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.paged.execution.model_runner.PIECE_TOKENS", 64)
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    engine = load_engine(EngineConfig.fitting(model=model, dtype="float32", device="cpu"))
    asked = requests(SCORED)
    assert in_one_pass(engine, asked) == answers(engine.start(asked))


def test_a_row_that_the_pool_cannot_hold_in_all_layers(make_model: MakeModel) -> None:
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    engine = load_engine(EngineConfig.fitting(model=model, dtype="float32", device="cpu"))
    asked = [Request(0, tuple((3 * i) % 256 for i in range(400)), SCORED)]
    small = 420 * sum(spec.bytes_per_layer for spec in engine.kv_cache_specs)
    assert small < 400 * engine.bytes_per_token
    assert in_one_pass(engine, asked, small) == answers(engine.start(asked))
    two = [replace(asked[0], params=replace(SCORED, max_tokens=2))]
    [refused] = engine.reconfigured(kv_cache_memory_bytes=small).start(two)
    assert refused.error is not None
    assert refused.error.code == "kv_cache_too_small"


def test_labels_as_continuations(make_model: MakeModel) -> None:
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    engine = load_engine(EngineConfig.fitting(model=model, dtype="float32", device="cpu"))
    labels = tuple(Continuation(str(i), (i,)) for i in (5, 9, 77))
    asked = [Request.scoring(each.index, each.prompt_token_ids, labels) for each in requests(LABEL)]
    assert in_one_pass(engine, asked) == answers(engine.start(asked))


def test_rows_that_go_on_keep_all_layers(make_model: MakeModel) -> None:
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    engine = load_engine(EngineConfig.fitting(model=model, dtype="float32", device="cpu"))
    engine = engine.reconfigured(kv_cache_memory_bytes=POOL)
    asked = requests(LABEL)
    asked[7] = replace(asked[7], params=replace(LABEL, max_tokens=2))
    assert not engine.start(asked).cache.is_transient
    assert not engine.start(requests(LABEL), more=iter([])).cache.is_transient


@dataclass(frozen=True)
class Answered:
    """Implements `EarlierAnswer`."""

    done: Completion
    is_whole: bool = True
    token_ids: tuple[int, ...] = ()

    def completion(self, request: Request) -> Completion:
        return replace(self.done, request=request, is_copied=True)


@dataclass(frozen=True)
class HalfAnswered:
    """Answers to the rows with an odd index, and drafts for the others; `EarlierAnswers`."""

    done: dict[int, Completion]

    def find(self, request: Request, num_read_once_tokens: int) -> Answered | None:
        return Answered(self.done[request.index]) if request.index % 2 else None

    def tokens_at(self, index: int) -> tuple[int, ...]:
        return (5,)


def test_answers_of_an_earlier_run_are_copied_beside_one_pass(make_model: MakeModel) -> None:
    """A row that the pool cannot hold in all layers is computed with `--from`, too."""
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    engine = load_engine(EngineConfig.fitting(model=model, dtype="float32", device="cpu"))
    asked = [*requests(SCORED, 6), Request(6, tuple((3 * i) % 256 for i in range(400)), SCORED)]
    done = {each.request.index: each for each in engine.start(asked)}
    small = 420 * sum(spec.bytes_per_layer for spec in engine.kv_cache_specs)
    small_engine = engine.reconfigured(kv_cache_memory_bytes=small)
    run = small_engine.start(asked, earlier=HalfAnswered(done))
    assert run.cache.is_transient
    found = sorted(run, key=lambda each: each.request.index)
    assert [each.is_copied for each in found] == [index % 2 == 1 for index in range(7)]
    assert [each.error for each in found] == [None] * 7
    for each in found:
        known = done[each.request.index]
        assert (each.outputs, each.prompt_logprobs) == (known.outputs, known.prompt_logprobs)


def test_streamed_weights_are_read_once_for_a_pass(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("qwen3", "deep", num_hidden_layers=9)
    config = EngineConfig.fitting(model=model, dtype="float32", device="cpu")
    asked = requests(SCORED, 20)
    assert sum(len(each.prompt_token_ids) for each in asked) < TRANSIENT_STEP_TOKENS
    expected = answers(load_engine(config).start(asked))
    engine = streaming(config, tmp_path / "packed")
    streamed = streamed_by(engine)
    before = streamed.figures.num_bytes
    assert in_one_pass(engine, asked) == expected
    read = streamed.figures.num_bytes - before
    assert read <= streamed.residency.pass_bytes + streamed.residency.ring_bytes
