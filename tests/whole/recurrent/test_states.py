"""Models with recurrent layers, whole: Transformers' tokens, whatever becomes of their states."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import EngineConfig, WindowSize
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.admit_all import AdmitAll
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair, long_except
from tests.support.families import save_tiny
from tests.support.jsonl import write_jsonl
from tests.support.plan_jobs import job

NUM_GENERATED = 12
# Without drafts, which follow measured times.
CROWDED: dict[str, Any] = {"num_blocks": 60, "block_size": 8, "speculate": "off"}
LENGTHS = [1, 15, 16, 17, 64, 65, 130, 200]
MODELS = ["lfm2", "qwen3_5"]
# Transformers takes the tokens of a prompt of a DeltaNet in chunks, which rounds otherwise.
CLOSE = {"lfm2": 1e-4, "qwen3_5": 1e-3}
# Where the likeliest two are this near, two programs may differ.
MARGIN = 1e-3

Models = Callable[[str], "Oracle"]


@dataclass(frozen=True)
class Oracle:
    """A model folder, and what Transformers says of prompts whose answers are known."""

    name: str
    folder: Path
    model: Any

    @torch.inference_mode()
    def logits(self, prompt: list[int], output: list[int]) -> torch.Tensor:
        """Return those from which each token of the answer was chosen, nothing kept in between."""
        whole = torch.tensor([[*prompt, *output[:-1]]])
        found: torch.Tensor = self.model(whole, use_cache=False).logits[0, len(prompt) - 1 :]
        return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    made: dict[str, Oracle] = {}

    def make(name: str) -> Oracle:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = Oracle(name, folder, save_tiny(name, folder))
        return made[name]

    return make


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(256, (max(LENGTHS),), generator=generator).tolist()
    return [
        *(shared[:length] for length in LENGTHS),
        *([*shared[: length - 1], 7] for length in LENGTHS[::2]),
        *([*shared[:150], each, *shared[:20]] for each in (3, 4)),
    ]


def run(
    folder: Path,
    requests: list[Request],
    policy: RunPolicy = DEFAULT_POLICY,
    *,
    is_async: bool = False,
    **engine: Any,
) -> tuple[list[Completion], Any]:
    """Return the completions in the order of the requests, and the report."""
    engine.setdefault("dtype", "float32")
    device = replace(choose_device("cpu"), async_scheduling=is_async)
    going = load_engine(EngineConfig(model=folder, **engine), policy, device).start(requests)
    answers = sorted(going, key=lambda each: each.request.index)
    assert [each.error for each in answers] == [None] * len(requests)
    return answers, going.report()


def greedy() -> list[Request]:
    params = SamplingParams(max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=5)
    return [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts())]


def check(oracle: Oracle, answers: list[Completion]) -> None:
    """Compare tokens up to a near tie, and the first step's log-probabilities, which show more."""
    num_compared = 0
    for answer in answers:
        prompt, [found] = list(answer.request.prompt_token_ids), answer.outputs
        logits = oracle.logits(prompt, list(found.token_ids))
        assert found.logprobs is not None
        for each in found.logprobs[0].top:
            expected = float(logits[0].log_softmax(-1)[each.token_id])
            assert each.logprob == pytest.approx(expected, abs=CLOSE[oracle.name])
        for token, row in zip(found.token_ids, logits, strict=True):
            best = row.topk(2)
            if best.values[0] - best.values[1] < MARGIN:
                break
            assert token == int(best.indices[0]), f"behind {len(prompt)} tokens"
            num_compared += 1
    assert num_compared > len(answers) * NUM_GENERATED / 2


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_first_logits_equal_transformers(name: str, models: Models) -> None:
    oracle = models(name)
    answers, report = run(oracle.folder, greedy(), max_num_batched_tokens=37)
    check(oracle, answers)
    assert report["prefix"]["hit_tokens"] > 0


@every_pair(name=MODELS, mode=["swap", "recompute"], prefix_caching=[True, False])
def test_and_when_preempted(name: str, mode: str, prefix_caching: bool, models: Models) -> None:
    oracle = models(name)
    answers, report = run(
        oracle.folder,
        greedy(),
        RunPolicy(AdmitAll),  # so that somebody must give way
        block_size=8,
        num_blocks=-(-(max(LENGTHS) + NUM_GENERATED) // 8) + 2,
        preemption_mode=mode,
        speculate="off",  # drafts follow measured times
        max_num_batched_tokens=101,
        prefix_caching=prefix_caching,
    )
    check(oracle, answers)
    assert report["preemptions"][mode] > 0


def every_kind() -> list[Request]:
    """Answers of all kinds behind prompts that share what they begin with."""
    kinds = [
        SamplingParams(max_tokens=9, ignore_eos=True, logprobs=3),
        SamplingParams(max_tokens=9, n=3, temperature=1.0, seed=5, ignore_eos=True, logprobs=3),
        SamplingParams(max_tokens=9, n=2, beam_width=3, ignore_eos=True),
        SamplingParams(max_tokens=1, prompt_logprobs=2),
    ]
    rows = [(prompt, kinds[index % 4]) for index, prompt in enumerate(prompts()[3:])]
    rows += [(prompts()[-1], kind) for kind in kinds]
    return [Request(index, tuple(prompt), kind) for index, (prompt, kind) in enumerate(rows)]


@pytest.fixture(scope="module")
def alone(models: Models) -> Callable[[str, str], list[Any]]:
    """What each row comes to by itself, by model and dtype."""
    known: dict[tuple[str, str], list[Any]] = {}

    def answers(name: str, dtype: str) -> list[Any]:
        if (name, dtype) not in known:
            engine = load_engine(EngineConfig(model=models(name).folder, dtype=dtype))
            known[name, dtype] = [
                completion.outputs
                for request in every_kind()
                for completion in engine.start([request])
            ]
        return known[name, dtype]

    return answers


@pytest.mark.invariant("same bytes whatever runs beside a row")
@every_pair(
    name=MODELS,
    dtype=["float32", "bfloat16"],
    settings=[
        {},
        {"prefix_caching": False, "max_num_seqs": 3},
        {"max_num_batched_tokens": 37},
        {"max_num_seqs": 2, "is_async": True},
        {**CROWDED, "preemption_mode": "swap"},
        {**CROWDED, "preemption_mode": "recompute"},
    ],
)
def test_bytes_do_not_depend_on_who_else_runs(
    name: str, dtype: str, settings: dict[str, Any], models: Models, alone: Any
) -> None:
    """Tokens and log-probabilities to the last bit: of samples, beams and scored prompts too."""
    folder = models(name).folder
    policy = RunPolicy(AdmitAll) if "num_blocks" in settings else DEFAULT_POLICY
    answers, report = run(folder, every_kind(), policy, dtype=dtype, **settings)
    for answer, expected in zip(answers, alone(name, dtype), strict=True):
        assert answer.outputs == expected, f"row {answer.request.index}"
    if "num_blocks" in settings:
        assert sum(report["preemptions"].values()) > 0


@pytest.mark.parametrize("window_rows", long_except([1000, 90], [90]))
def test_a_shared_prefix_is_computed_once_as_planned(
    window_rows: int, models: Models, tmp_path: Path
) -> None:
    """The shape of vLLM's issue 36010: a state is kept where the rows part, and `plan` says so."""
    trunk = "".join(chr(97 + index * index % 26) for index in range(369))
    rows = [{"prompt": f"{trunk}{index:03d}" + "z" * 37, "max_tokens": 2} for index in range(300)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    config = job(path, models("lfm2").folder, window=WindowSize(rows=window_rows))
    forecast = plan_file(config, JobListener())
    report = run_job(config).report
    for key in ("prompt", "cached", "computed"):
        assert forecast["tokens"][key] == report["tokens"][key], key
    assert forecast["states"] == report["states"]
    assert report["states"]["found_states"] == 299
    assert report["memory"]["states"] == report["states"]["pool_bytes"]
    distinct = 369 + 300 * 40
    assert report["tokens"]["computed"] <= distinct + 300 * 63
