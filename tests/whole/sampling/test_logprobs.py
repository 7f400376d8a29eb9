"""Log-probabilities of answers and prompts: those of Transformers, however the engine runs."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.model_runner import ModelRunner
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.llm import LLM
from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.logprobs import IMPOSSIBLE, TokenLogprob
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.engines import load_engine

SHARED = [7 * i % 251 for i in range(70)]
# Of one token, of a block, shared to the block and inside one, and the same again.
PROMPTS = [
    [5],
    SHARED[:16],
    [*SHARED, 1, 2, 3],
    [*SHARED, 1, 9],
    SHARED[:32],
    [*SHARED, 1, 2, 3],
    list(range(40)),
]
ASKED = {"logprobs": 3, "prompt_logprobs": 2, "max_tokens": 24, "ignore_eos": True}
PARAMS = [
    SamplingParams(**ASKED),  # type: ignore[arg-type]
    SamplingParams(**ASKED, n=3, temperature=1.0, seed=4),  # type: ignore[arg-type]
    SamplingParams(**ASKED),  # type: ignore[arg-type]
    SamplingParams(max_tokens=30, ignore_eos=True),
    SamplingParams(prompt_logprobs=0, max_tokens=0),
    SamplingParams(**ASKED),  # type: ignore[arg-type]
    SamplingParams(logprobs=0, max_tokens=30, stop_token_ids=tuple(range(0, 256, 9))),
]


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "logprobs", max_position_embeddings=400)


@cache
def oracle(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def log_softmax(folder: Path, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = oracle(folder)(torch.tensor([ids])).logits[0]
    return logits.double().log_softmax(-1)


def check_token(found: TokenLogprob, token_id: int, expected: Tensor, num_top: int) -> None:
    assert found.token_id == token_id
    assert found.logprob == pytest.approx(expected[token_id].item(), abs=1e-4)
    assert found.rank == int((expected >= expected[token_id]).sum())
    top = expected.topk(num_top) if num_top else None
    assert [each.token_id for each in found.top] == ([] if top is None else top.indices.tolist())
    for rank, each in enumerate(found.top, start=1):
        assert each.rank == rank
        assert each.logprob == pytest.approx(expected[each.token_id].item(), abs=1e-4)


def check(folder: Path, prompt: list[int], completion: Completion) -> None:
    """Compare with one forward pass over prompt and answer."""
    assert completion.error is None
    params = completion.request.params
    for output in completion.outputs:
        expected = log_softmax(folder, [*prompt, *output.token_ids])
        if params.prompt_logprobs is None:
            assert completion.prompt_logprobs is None
        else:
            assert completion.prompt_logprobs is not None
            first, *others = completion.prompt_logprobs
            assert first is None
            for place, (token_id, found) in enumerate(zip(prompt[1:], others, strict=True)):
                assert found is not None
                check_token(found, token_id, expected[place], params.prompt_logprobs)
        if params.logprobs is None:
            assert output.logprobs is None
            assert output.cumulative_logprob is None
            continue
        assert output.logprobs is not None
        pairs = zip(output.token_ids, output.logprobs, strict=True)
        for place, (token_id, found) in enumerate(pairs, start=len(prompt) - 1):
            check_token(found, token_id, expected[place], params.logprobs)
        assert output.cumulative_logprob == sum(each.logprob for each in output.logprobs)


def answers(
    folder: Path,
    policy: RunPolicy = DEFAULT_POLICY,
    device: Device | None = None,
    **engine: Any,
) -> tuple[list[Completion], EngineReport]:
    config = EngineConfig(model=folder, dtype="float32", block_size=16, **engine)
    requests = [
        Request(index, tuple(prompt), params)
        for index, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))
    ]
    run = load_engine(config, policy, device).start(
        requests, hooks=RunHooks(on_step=lambda _: run.scheduler.check())
    )
    return sorted(run, key=lambda each: each.request.index), run.report()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Completion]:
    """The answers of a run that nothing disturbs."""
    return answers(folder)[0]


def test_as_transformers(folder: Path) -> None:
    found, report = answers(folder)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        check(folder, prompt, completion)
    assert found[4].outputs[0].token_ids == ()
    assert found[4].outputs[0].finish_reason == "length"
    # A duplicate has what the row has that it repeats.
    assert found[5].is_duplicate != found[2].is_duplicate
    assert found[5].prompt_logprobs == found[2].prompt_logprobs
    assert found[5].outputs == found[2].outputs
    answered = [output for completion in found for output in completion.outputs]
    assert report["tokens"]["generated"] == sum(len(output.token_ids) for output in answered)


OTHER_PATHS = [(True, False), (False, True)]
# Without drafts, which follow measured times.
FEW_BLOCKS: dict[str, Any] = {"num_blocks": 9, "speculate": "off"}


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 2, "max_num_batched_tokens": 17},
        {"prefix_caching": False},
        {**FEW_BLOCKS, "preemption_mode": "swap"},
        {**FEW_BLOCKS, "preemption_mode": "recompute"},
        {**FEW_BLOCKS, "preemption_mode": "swap", "max_num_batched_tokens": 13},
    ],
    ids=str,
)
def test_the_same_however_it_runs(
    folder: Path, expected: list[Completion], engine: dict[str, Any]
) -> None:
    # With few blocks let in whoever fits, so that somebody must give way.
    policy = RunPolicy(AdmitAll) if "num_blocks" in engine else DEFAULT_POLICY
    found, report = answers(folder, policy, **engine)
    for one, other in zip(found, expected, strict=True):
        assert one.error is None
        assert one.outputs == other.outputs
        assert one.prompt_logprobs == other.prompt_logprobs
    if "num_blocks" in engine:
        assert report["preemptions"]["swap"] + report["preemptions"]["recompute"] > 0


def test_a_row_has_its_bytes_beside_rows_that_ask_for_more(folder: Path) -> None:
    plain = [
        replace(each, logprobs=None, prompt_logprobs=None) for each in PARAMS if each.max_tokens
    ]
    prompts = [prompt for prompt, each in zip(PROMPTS, PARAMS, strict=True) if each.max_tokens]
    llm = LLM(folder, dtype="float32", block_size=16)
    expected = llm.generate(prompts, plain)
    found = [each for each in answers(folder)[0] if each.request.params.max_tokens]
    for one, other in zip(found, expected, strict=True):
        assert [o.token_ids for o in one.outputs] == [o.token_ids for o in other.outputs]


@pytest.mark.parametrize(
    ("is_async", "graphs"),
    [(True, True), *(pytest.param(*each, marks=pytest.mark.long) for each in OTHER_PATHS)],
)
def test_on_every_path(
    folder: Path, expected: list[Completion], is_async: bool, graphs: bool
) -> None:
    """A token that was computed behind a stop is dropped, and what is known of it."""
    device = replace(choose_device("cpu"), async_scheduling=is_async, graphs=graphs)
    found, _ = answers(folder, device=device)
    for one, other in zip(found, expected, strict=True):
        assert (one.outputs, one.prompt_logprobs) == (other.outputs, other.prompt_logprobs)


@pytest.mark.invariant("same answers in smaller pieces")
def test_in_pieces_where_memory_is_short(
    folder: Path, expected: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Decoder.hidden

    def hidden(model: Decoder, batch: Any, cache: Any) -> Tensor:
        if len(batch.input_ids) > 9:
            raise MemoryError
        return compute(model, batch, cache)

    monkeypatch.setattr(Decoder, "hidden", hidden)
    found, _ = answers(folder)
    for one, other in zip(found, expected, strict=True):
        assert (one.outputs, one.prompt_logprobs) == (other.outputs, other.prompt_logprobs)


def test_the_logits_of_few_positions_are_there_at_once(
    folder: Path, expected: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    row_bytes = 4 * oracle(folder).config.vocab_size
    monkeypatch.setattr("pagedrun.paged.execution.model_runner.MAX_SCORED_BYTES", 3 * row_bytes + 1)
    tall: list[int] = []
    head = Decoder.head

    def watched(model: Decoder, hidden: Tensor) -> Tensor:
        tall.append(len(hidden))
        return head(model, hidden)

    monkeypatch.setattr(Decoder, "head", watched)
    found, _ = answers(folder)
    assert max(tall) <= len(PROMPTS) + 2  # of the tokens that are drawn
    assert tall.count(3) > 30
    assert [each.prompt_logprobs for each in found] == [each.prompt_logprobs for each in expected]


def test_what_is_impossible_has_a_number_that_json_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Decoder.head

    def never_five(model: Decoder, hidden: Tensor) -> Tensor:
        logits = head(model, hidden)
        logits[:, 5] = -torch.inf
        return logits

    monkeypatch.setattr(Decoder, "head", never_five)
    llm = LLM(folder, dtype="float32")
    (found,) = llm.generate([[1, 5, 2]], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert found.prompt_logprobs is not None
    assert found.prompt_logprobs[1] is not None
    assert found.prompt_logprobs[1].logprob == IMPOSSIBLE


def test_a_prompt_whose_logits_are_nan_fails_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in the middle of a prompt, while its last logits are as they should be."""
    scores = ModelRunner._scores

    def poisoned(runner: ModelRunner, hidden: Tensor, step: Any) -> Any:
        found = scores(runner, hidden, step)
        if found is not None:
            rows = np.repeat(step.rows, step.num_scored)
            found.logprobs[torch.from_numpy(rows == 2)] = torch.nan
        return found

    monkeypatch.setattr(ModelRunner, "_scores", poisoned)
    found, _ = answers(folder)
    failed = [each.request.index for each in found if each.error is not None]
    assert failed == [2, 5]  # the fifth repeats the second
    assert all(found[index].error.code == "nan_logits" for index in failed)  # type: ignore[union-attr]
