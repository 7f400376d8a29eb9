"""Penalties, biases and forbidden words in whole runs: against Transformers, however they run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.text.prompt_encoder import BadWords
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.asker import expected
from tests.support.command import Command
from tests.support.comparable import comparable_rows
from tests.support.engines import load_engine
from tests.support.jsonl import read_jsonl, write_jsonl
from tests.support.manifests import as_if_killed

NUM_GENERATED = 22
LETTERS = tuple(range(94))  # the tokens of the characters from "!" on
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.1},
    "bias": {"logit_bias": {"5": 4.0, "65": 4.0, "300": 4.0}},
    "allowed": {"allowed_token_ids": LETTERS},
    "words": {"allowed_token_ids": LETTERS, "bad_words": []},  # some of what it would say
    "everything": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": {"33": 3.0, "34": 3.0},  # B and C
        "allowed_token_ids": LETTERS,
        "bad_words": ["BC", "C"],
    },
}
# Without drafts, which follow measured times.
CROWDED: dict[str, Any] = {"num_blocks": 12, "prefix_caching": False, "speculate": "off"}
VARIATIONS: dict[str, dict[str, Any]] = {
    "many": {"max_num_seqs": 64},
    "one by one": {"max_num_seqs": 1},
    "small chunks": {"max_num_batched_tokens": 19},
    "swapped": {**CROWDED, "preemption_mode": "swap"},
    "recomputed": {**CROWDED, "preemption_mode": "recompute"},
}


@dataclass(frozen=True)
class Oracle:
    """What is asked, and what Transformers answers, greedy and in float32."""

    folder: Path
    prompts: list[list[int]]
    params: list[SamplingParams]
    answers: list[list[int]]


class _Definition:
    def __init__(self, request: Request) -> None:
        self._request = request

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        answer = tuple(input_ids[0, len(self._request.prompt_token_ids) :].tolist())
        return expected(scores[0], self._request, answer).unsqueeze(0)


@torch.inference_mode()
def generated(model: Any, prompt: list[int], params: SamplingParams) -> list[int]:
    words = tuple(tuple(ord(each) - ord("!") for each in word) for word in params.bad_words)
    request = Request(0, tuple(prompt), params, words)
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=NUM_GENERATED, do_sample=False, eos_token_id=None, pad_token_id=0
        ),
        logits_processor=transformers.LogitsProcessorList([_Definition(request)]),
    )
    return list(out[0, len(prompt) :].tolist())


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "penalties")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    """Two prompts for each thing that is asked, all behind one prefix."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # or it would fill in for the one not given
    shared = torch.randint(256, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    found = Oracle(folder, [], [], [])
    for place, asked in enumerate([*ASKED.values()] * 2):
        prompt = [*shared, 10 + place]
        if "bad_words" in asked and not asked["bad_words"]:
            allowed = SamplingParams(allowed_token_ids=LETTERS)
            text = "".join(chr(ord("!") + each) for each in generated(model, prompt, allowed))
            asked = {**asked, "bad_words": [text[3:5], text[9:12], text[20]]}
        params = SamplingParams(max_tokens=NUM_GENERATED, ignore_eos=True, **asked)
        found.prompts.append(prompt)
        found.params.append(params)
        found.answers.append(generated(model, prompt, params))
    return found


Answers = list[list[list[int]]]


def answered(
    folder: Path, prompts: list[list[int]], params: list[SamplingParams], **settings: Any
) -> tuple[Answers, EngineReport]:
    """Return each prompt's samples, and the report; in a small pool whoever fits is let in."""
    config = EngineConfig(model=folder, dtype="float32", **settings)
    policy = RunPolicy(AdmitAll) if "num_blocks" in settings else DEFAULT_POLICY
    engine = load_engine(config, policy)
    words = BadWords(engine.loaded.tokenizer)
    run = engine.start(
        [
            Request(index, tuple(prompt), asked, words.token_ids(asked.bad_words))
            for index, (prompt, asked) in enumerate(zip(prompts, params, strict=True))
        ]
    )
    done = sorted(run, key=lambda completion: completion.request.index)
    assert all(each.error is None for each in done)
    return [[list(output.token_ids) for output in each.outputs] for each in done], run.report()


def test_the_oracle_answers_differently_for_each(oracle: Oracle) -> None:
    """Or the tests below would show nothing."""
    plain = SamplingParams(max_tokens=NUM_GENERATED, ignore_eos=True)
    bare, _ = answered(oracle.folder, oracle.prompts, [plain] * len(oracle.prompts))
    differing = [each != [answer] for each, answer in zip(bare, oracle.answers, strict=True)]
    assert differing == [False, *[True] * (len(ASKED) - 1)] * 2


@pytest.mark.parametrize("name", VARIATIONS)
def test_tokens_equal_transformers(name: str, oracle: Oracle) -> None:
    settings = VARIATIONS[name]
    found, report = answered(oracle.folder, oracle.prompts, oracle.params, **settings)
    assert found == [[answer] for answer in oracle.answers]
    swaps, recomputations = report["preemptions"]["swap"], report["preemptions"]["recompute"]
    preemptions = swaps if settings.get("preemption_mode") == "swap" else recomputations
    assert "num_blocks" not in settings or preemptions > 0


def test_samples_are_the_same_however_they_run(oracle: Oracle) -> None:
    """Forked from one prompt, each with counts of its own, beside a plain row."""
    sampled = {"temperature": 0.9, "n": 3, "max_tokens": NUM_GENERATED, "ignore_eos": True}
    asked = [ASKED["everything"], ASKED["frequency"], {}, ASKED["repetition"]]
    params = [SamplingParams(**{**sampled, **each}) for each in asked]

    def run(**settings: Any) -> Answers:
        return answered(oracle.folder, oracle.prompts[: len(params)], params, **settings)[0]

    found = run(max_num_seqs=64)
    assert all(len(set(map(tuple, each))) == 3 for each in found)
    assert run(max_num_seqs=1) == found
    for name in ("swapped", "recomputed"):
        assert run(**VARIATIONS[name]) == found
    # A plain row draws what it draws alone.
    one = SamplingParams(max_tokens=1)
    alone, _ = answered(oracle.folder, [[0], [0], oracle.prompts[2]], [one, one, params[2]])
    assert alone[2] == found[2]


@pytest.fixture
def job(folder: Path, tmp_path: Path) -> JobConfig:
    """Rows that ask the same, rows that ask nearly the same, and samples."""
    rows: list[dict[str, Any]] = []
    for asked in (*ASKED.values(), {"bad_words": ["a", "bc"]}, {"logit_bias": {"5": 4.5}}):
        rows += [{"prompt": "what is asked", **asked}] * 2
        rows += [{"prompt": f"another {len(rows)}", "temperature": 0.8, "n": 2, **asked}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return JobConfig(
        input=str(tmp_path / "rows.jsonl"),
        output=str(tmp_path / "whole.jsonl"),
        engine=EngineConfig(model=folder, dtype="float32", max_num_seqs=4),
        sampling=SamplingParams(max_tokens=12, ignore_eos=True),
    )


def test_duplicates_are_those_that_ask_the_same_and_a_resumed_job_answers_alike(
    job: JobConfig, tmp_path: Path
) -> None:
    run_job(job)
    rows = sorted(read_jsonl(job.output), key=lambda row: int(row["index"]))
    assert [row["error"] for row in rows] == [None] * len(rows)
    for first, second in zip(rows[::3], rows[1::3], strict=True):
        assert first["outputs"] == second["outputs"]
        assert second["usage"]["cached_tokens"] in (0, second["usage"]["prompt_tokens"])
    assert len({row["text"] for row in rows[::3]}) > len(ASKED) - 3
    output = tmp_path / "resumed.jsonl"
    written = Path(job.output).read_bytes()
    output.write_bytes(written[: len(written) // 2])
    manifest = Path(f"{output}.run.json")
    manifest.write_bytes(Path(f"{job.output}.run.json").read_bytes())
    as_if_killed(manifest)
    settings = {"output": str(output), "resume": True}
    run_job(JobConfig(**{**_fields(job), **settings}))
    assert comparable_rows(output) == comparable_rows(job.output)


def _fields(job: JobConfig) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


def test_a_row_a_call_a_record_a_recipe_and_flags_ask_the_same(
    pagedrun: Command, folder: Path, tmp_path: Path
) -> None:
    asked = {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {"33": 3, "34": -1.5},
        "allowed_token_ids": [*range(60)],
        "bad_words": ["BC", "A"],
    }
    body = {"model": "m", "prompt": "abc", **asked}
    call = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    cells = ",".join(f'"{json.dumps(each)}"'.replace('"', '""')[1:-1] for each in asked.values())
    flags = [f"--{name.replace('_', '-')}={_typed(value)}" for name, value in asked.items()]
    flags[-1:] = ["--bad-words=BC", "--bad-words=A"]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in asked.items()))

    def texts(name: str, content: str, *more: object) -> list[str]:
        source, output = tmp_path / name, tmp_path / "out.jsonl"
        source.write_text(content)
        settings = ["--model", folder, "--max-tokens", 10, "--ignore-eos", "--raw", "--quiet"]
        status, _, error = pagedrun(
            "generate", source, "-o", output, "--overwrite", *settings, *more
        )
        assert status == 0, error
        return [_text(row) for row in read_jsonl(output)]

    plain = '{"prompt": "abc"}\n'
    (answer,) = texts("a.jsonl", json.dumps({"prompt": "abc", "raw": True, **asked}))
    assert texts("b.jsonl", plain) != [answer]
    assert texts(
        "c.jsonl", json.dumps({"prompt": "abc", "raw": True, "sampling_params": asked})
    ) == [answer]
    assert texts("d.jsonl", json.dumps(call)) == [answer]
    assert texts("e.csv", f"prompt,{','.join(asked)}\nabc,{cells}\n") == [answer]
    assert texts("f.jsonl", plain, *flags) == [answer]
    assert texts("g.jsonl", plain, "--recipe", recipe) == [answer]


def _typed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else json.dumps(value)


def _text(row: Mapping[str, Any]) -> str:
    text = row["response"]["body"]["choices"][0]["text"] if "response" in row else row["text"]
    return str(text)
