"""Scores of continuations: those of full forward passes, the prompt computed once for all."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.engines import load_engine

SHARED = tuple(5 * i % 241 for i in range(60))
PROMPTS = [(9,), SHARED[:16], (*SHARED, 1, 2), (*SHARED, 1, 3, 4), SHARED[:33], (*SHARED, 1, 2)]
LENGTHS = (1, 2, 3, 7, 20, 1)
ENGINE = {"block_size": 16, "dtype": "float32"}


def continuation(*token_ids: int) -> Continuation:
    return Continuation(",".join(map(str, token_ids)), token_ids)


CONTINUATIONS = tuple(continuation(*range(50 + n, 50 + 2 * n)) for n in LENGTHS)


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("llama", "scores", max_position_embeddings=400)


@cache
def oracle(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def requests() -> list[Request]:
    """Rows to score, and rows to answer beside them."""
    answer = SamplingParams(max_tokens=20, ignore_eos=True, n=2, temperature=1.0)
    scored = [Request.scoring(i, prompt, CONTINUATIONS) for i, prompt in enumerate(PROMPTS)]
    return [*scored, *(Request(10 + i, SHARED[: 20 + i], answer) for i in range(3))]


def run(
    folder: Path,
    asked: list[Request],
    policy: RunPolicy = DEFAULT_POLICY,
    device: Device | None = None,
    **engine: Any,
) -> tuple[dict[int, Completion], EngineReport]:
    config = EngineConfig(model=folder, **{**ENGINE, **engine})
    started = load_engine(config, policy, device).start(
        asked, hooks=RunHooks(on_step=lambda _: started.scheduler.check())
    )
    found = {each.request.index: each for each in started}
    return found, started.report()


def expected(folder: Path, prompt: tuple[int, ...], each: Continuation) -> tuple[list[float], bool]:
    with torch.inference_mode():
        logits = oracle(folder)(torch.tensor([[*prompt, *each.token_ids]])).logits[0].double()
    places = range(len(prompt) - 1, len(prompt) + len(each.token_ids) - 1)
    pairs = list(zip(places, each.token_ids, strict=True))
    logprobs = [logits[place].log_softmax(-1)[token].item() for place, token in pairs]
    return logprobs, all(int(logits[place].argmax()) == token for place, token in pairs)


def test_as_transformers(folder: Path) -> None:
    found, report = run(folder, requests())
    for index, prompt in enumerate(PROMPTS):
        completion = found[index]
        assert completion.error is None
        assert completion.outputs == ()
        assert [score.text for score in completion.scores] == [each.text for each in CONTINUATIONS]
        for score, each in zip(completion.scores, CONTINUATIONS, strict=True):
            logprobs, is_greedy = expected(folder, prompt, each)
            assert score.token_logprobs == pytest.approx(logprobs, abs=1e-4)
            assert score.logprob == sum(score.token_logprobs)
            assert score.num_tokens == len(each.token_ids)
            assert score.is_greedy == is_greedy
        assert completion.text == max(completion.scores, key=lambda each: each.logprob).text
    assert found[5].is_duplicate != found[2].is_duplicate
    assert found[5].scores == found[2].scores
    # What is given is not generated.
    answered = [found[10 + i].outputs for i in range(3)]
    assert report["tokens"]["generated"] == sum(len(o.token_ids) for each in answered for o in each)


def test_the_whole_context_is_read(folder: Path) -> None:
    """As many tokens as the model has positions, and one behind them to score."""
    prompt, given = SHARED[:2], continuation(*(7 * i % 251 for i in range(399)))
    found, _ = run(folder, [Request.scoring(0, prompt, (given,))])
    logprobs, _ = expected(folder, prompt, given)
    assert found[0].scores[0].token_logprobs == pytest.approx(logprobs, abs=1e-4)


def test_greedy_answers_are_greedy_continuations(folder: Path) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=0)
    answers, _ = run(folder, [Request(0, PROMPTS[2], params)])
    (output,) = answers[0].outputs
    other = (*output.token_ids[:-1], (output.token_ids[-1] + 1) % 256)
    given = (continuation(*output.token_ids), continuation(*other))
    found, _ = run(folder, [Request.scoring(0, PROMPTS[2], given)])
    assert [score.is_greedy for score in found[0].scores] == [True, False]
    assert output.logprobs is not None
    # Token by token they take the same path, and have the same bytes.
    assert found[0].scores[0].token_logprobs == tuple(each.logprob for each in output.logprobs)


# Without drafts, which follow measured times.
FEW_BLOCKS: dict[str, Any] = {"num_blocks": 9, "speculate": "off"}


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 3, "max_num_batched_tokens": 11},
        {"prefix_caching": False},
        {**FEW_BLOCKS, "preemption_mode": "swap"},
        {**FEW_BLOCKS, "preemption_mode": "recompute"},
        {
            **FEW_BLOCKS,
            "num_blocks": 7,
            "preemption_mode": "recompute",
            "max_num_batched_tokens": 23,
        },
    ],
    ids=str,
)
def test_the_same_however_it_runs(folder: Path, engine: dict[str, Any]) -> None:
    wanted, _ = run(folder, requests())
    # With few blocks let in whoever fits, so that somebody must give way.
    policy = RunPolicy(AdmitAll) if "num_blocks" in engine else DEFAULT_POLICY
    found, report = run(folder, requests(), policy, **engine)
    for index, other in wanted.items():
        assert found[index].error is None
        assert found[index].scores == other.scores
        assert found[index].outputs == other.outputs
    if "num_blocks" in engine:
        assert report["preemptions"]["swap"] + report["preemptions"]["recompute"] > 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
def test_on_every_path(folder: Path, is_async: bool, graphs: bool) -> None:
    wanted, _ = run(folder, requests())
    device = replace(choose_device("cpu"), async_scheduling=is_async, graphs=graphs)
    found, _ = run(folder, requests(), device=device)
    assert {index: each.scores for index, each in found.items()} == {
        index: each.scores for index, each in wanted.items()
    }


def test_the_prompt_is_computed_once(folder: Path) -> None:
    """Texts of one token need nothing else: no block is copied for them."""
    letters = tuple(continuation(token) for token in range(65, 91))
    _, report = run(folder, [Request.scoring(0, PROMPTS[2], letters)])
    assert report["tokens"]["computed"] == len(PROMPTS[2])
    assert report["copy_on_write"]["block_copies"] == 0
    _, report = run(folder, [Request.scoring(0, PROMPTS[2], CONTINUATIONS)])
    assert report["tokens"]["computed"] == len(PROMPTS[2])
    assert report["tokens"]["preempted_recomputed"] == 0
    assert report["copy_on_write"]["block_copies"] > 0


def test_hundreds_of_continuations(folder: Path) -> None:
    many = tuple(continuation(token, token // 2) for token in range(250))
    found, report = run(folder, [Request.scoring(0, PROMPTS[3], many)], max_num_seqs=32)
    few, _ = run(folder, [Request.scoring(0, PROMPTS[3], many[100:103])])
    assert found[0].scores[100:103] == few[0].scores
    assert len(found[0].scores) == 250
    assert report["finish_reasons"] == {"stop": 1}


def test_scores_and_the_logprobs_of_the_prompt(folder: Path) -> None:
    asked = Request.scoring(0, PROMPTS[2], CONTINUATIONS, prompt_logprobs=1)
    found, _ = run(folder, [asked])
    plain, _ = run(folder, [Request.scoring(0, PROMPTS[2], CONTINUATIONS)])
    text = SamplingParams(max_tokens=0, prompt_logprobs=1)
    alone, _ = run(folder, [Request(0, PROMPTS[2], text)])
    assert found[0].scores == plain[0].scores
    assert found[0].prompt_logprobs == alone[0].prompt_logprobs
