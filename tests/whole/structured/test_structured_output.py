"""Answers with a structure: the same bytes on every schedule, and the structure asked for."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.run import Run, RunPolicy
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Completion, FinishReason, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import IM_END, MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.engines import ANY_PREFIX, load_engine
from tests.support.every_pair import long_except

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "size": {"enum": ["small", "smaller", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "size", "count"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
STRUCTURES: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"regex": "(abc|abd)-[0-9]{2}"},
    {"choice": ["yes", "no", 'never\n"mind"']},
    {"grammar": 'start: "ab" X "yz"\nX: /[0-9é]{1,3}/'},
    {"json_object": True},
    {},
]
Answers = dict[int, Completion]
POLICY = RunPolicy(AdmitAll, ANY_PREFIX)


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "structured", max_position_embeddings=400)


def requests() -> list[Request]:
    """Every structure and none, greedy and not, one answer and three, with and without a room."""
    rng = random.Random(5)
    shared = [rng.randrange(256) for _ in range(140)]
    made = []
    for index in range(24):
        own = [rng.randrange(256) for _ in range(rng.randrange(1, 20))]
        params = SamplingParams(
            max_tokens=rng.choice([3, 9, 60, 60]),
            temperature=index % 3 * 0.7,
            n=1 + index % 2 * 2,
            seed=index,
            stop=("bd", "l") if index % 5 == 0 else (),
            min_tokens=3 if index % 4 == 0 else 0,
            ignore_eos=index % 11 == 0,
            **STRUCTURES[index % len(STRUCTURES)],
        )
        prompt = (*shared[: rng.choice([0, 40, 140, 140])], *own)
        made.append(Request(index, prompt, params))
    twice = replace(made[0], index=len(made))  # greedy: computed once, answered twice
    return [*made, twice]


def answers(
    folder: Path,
    asked: list[Request],
    *,
    async_scheduling: bool = False,
    graphs: bool = False,
    **engine: Any,
) -> tuple[Answers, Run]:
    config = EngineConfig(model=folder, dtype="float32", **engine)
    device = replace(choose_device("cpu"), async_scheduling=async_scheduling, graphs=graphs)
    loaded = load_engine(config, POLICY, device)
    run = loaded.start(asked, hooks=RunHooks(on_step=lambda _: run.scheduler.check()))
    got = {completion.request.index: completion for completion in run}
    assert run.pool.num_held == 0
    assert not loaded.loaded.grammar_mask.num_followed
    return got, run


def outputs(found: Answers) -> dict[int, Any]:
    return {index: (each.outputs, each.error) for index, each in sorted(found.items())}


@pytest.fixture(scope="module")
def expected(folder: Path) -> Answers:
    return answers(folder, requests(), jump_ahead=False)[0]


# Without drafts, which follow measured times.
CROWDED: dict[str, Any] = {"num_blocks": 15, "speculate": "off"}
SETTINGS: dict[str, dict[str, Any]] = {
    "jump-ahead": {},
    "behind-a-device": {"async_scheduling": True},
    "graphs": {"async_scheduling": True, "graphs": True},
    "one-at-a-time": {"max_num_seqs": 1},
    "few-seats": {"max_num_seqs": 3},
    "tiny-chunks": {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    "swapped": {**CROWDED, "preemption_mode": "swap"},
    "recomputed": {**CROWDED, "preemption_mode": "recompute"},
    "recomputed-without-jumps": {
        **CROWDED,
        "preemption_mode": "recompute",
        "jump_ahead": False,
    },
    "uncached": {"prefix_caching": False},
}


@pytest.mark.parametrize(
    "name", long_except(SETTINGS, [*SETTINGS.keys() - {"few-seats", "uncached", "jump-ahead"}])
)
def test_the_same_bytes_on_every_schedule(name: str, folder: Path, expected: Answers) -> None:
    found, run = answers(folder, requests(), **SETTINGS[name])
    assert outputs(found) == outputs(expected)
    preempted = run.scheduler.counts.preemptions
    assert (sum(preempted.values()) > 0) == ("num_blocks" in SETTINGS[name])


def test_forced_tokens_have_log_probabilities(folder: Path, expected: Answers) -> None:
    """One taken without a step has none, so rows that ask for them take a step for each."""
    asked = [replace(each, params=replace(each.params, logprobs=1)) for each in requests()]
    found, _ = answers(folder, asked)
    for index, completion in found.items():
        for output, plain in zip(completion.outputs, expected[index].outputs, strict=True):
            assert output.token_ids == plain.token_ids
            assert output.logprobs is not None
            assert [each.token_id for each in output.logprobs] == list(output.token_ids)


def test_every_answer_has_its_structure(expected: Answers) -> None:
    num_ended = 0
    for index, completion in expected.items():
        params = completion.request.params
        assert completion.error is None
        for output in completion.outputs:
            if output.finish_reason is FinishReason.STOP and output.stop_reason is None:
                num_ended += params.structure is not None
                check_structure(output.text, params)
            elif output.finish_reason is FinishReason.LENGTH:
                assert len(output.token_ids) == params.max_tokens, index
    assert num_ended > 14


def check_structure(text: str, params: SamplingParams) -> None:
    if params.json_schema is not None:
        jsonschema.validate(json.loads(text), json.loads(params.json_schema))
    elif params.json_object:
        assert isinstance(json.loads(text), dict)
    elif params.regex is not None:
        assert re.fullmatch(params.regex, text)
    elif params.choice:
        assert text in params.choice
    elif params.grammar is not None:
        assert re.fullmatch("ab[0-9é]{1,3}yz", text)


def test_rows_without_a_structure_keep_their_bytes(folder: Path, expected: Answers) -> None:
    free = [each for each in requests() if each.params.structure is None]
    alone, _ = answers(folder, free)
    assert outputs(alone) == {index: outputs(expected)[index] for index in alone}


def test_forced_tokens_take_no_step_of_their_own(folder: Path) -> None:
    text = "the only thing to say"
    params = SamplingParams(choice=(text,), max_tokens=60)
    for jump_ahead, most in ((True, 2), (False, len(text))):
        found, run = answers(folder, [Request(0, (5, 6, 7), params)], jump_ahead=jump_ahead)
        [output] = found[0].outputs
        assert (output.text, output.finish_reason) == (text, FinishReason.STOP)
        assert len(output.token_ids) == run.statistics.generated_tokens == len(text)
        assert run.report()["timeline"][-1]["step"] <= most


def test_an_end_that_the_model_chooses(folder: Path) -> None:
    """Behind the first letter the answer may end: it does so by the model's own token."""
    params = SamplingParams(regex="a(b|c)*", max_tokens=300, temperature=3.0, n=20)
    found, _ = answers(folder, [Request(0, (5, 6, 7), params)])
    ended = [each for each in found[0].outputs if each.finish_reason is FinishReason.STOP]
    assert ended
    for output in ended:
        assert output.token_ids[-1] == IM_END
        assert re.fullmatch("a[bc]*", output.text)
    late = replace(params, min_tokens=7)
    found, _ = answers(folder, [Request(0, (5, 6, 7), late)])
    ended = [each for each in found[0].outputs if each.finish_reason is FinishReason.STOP]
    assert ended
    assert all(len(output.token_ids) > 7 for output in ended)


CANNOT: dict[str, Mapping[str, Any]] = {
    "regex": {"regex": "((("},
    "grammar": {"grammar": "start: x"},
    "json_schema": {"json_schema": {"type": "array", "uniqueItems": True}},
    "unsatisfiable": {"json_schema": {"type": "object", "allOf": [{"type": "string"}]}},
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_had_fails_its_row_only(name: str, folder: Path) -> None:
    free = Request(0, (5, 6, 7), SamplingParams(max_tokens=5))
    bad = Request(1, (5, 6, 8), SamplingParams(max_tokens=5, n=2, **CANNOT[name]))
    found, _ = answers(folder, [free, bad])
    error = found[1].error
    assert error is not None
    assert error.code == "invalid_grammar"
    assert error.param in CANNOT[name]
    assert outputs(found)[0] == outputs(answers(folder, [free])[0])[0]


def test_parameters_that_leave_no_token_fail_their_row(folder: Path) -> None:
    stops = tuple(range(256))
    params = SamplingParams(choice=("abc",), min_tokens=2, stop_token_ids=stops)
    for jump_ahead in (True, False):
        found, _ = answers(folder, [Request(0, (5, 6), params)], jump_ahead=jump_ahead)
        assert found[0].error is not None
        assert (found[0].error.code, found[0].error.param) == ("no_token_allowed", "choice")
