"""Answers that think first: the structure begins behind the thought."""

import re
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.engines import load_engine

PATTERN = "(abc|abd)-[0-9]{2} end"
BUDGET = 5


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("llama", "thinks")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load_engine(EngineConfig(model=folder, dtype="float32", block_size=4))


@pytest.fixture(scope="module")
def step_by_step(folder: Path) -> Engine:
    config = EngineConfig(model=folder, dtype="float32", block_size=4, jump_ahead=False)
    return load_engine(config)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def requests(tokenizer: Tokenizer, end: str, **params: Any) -> list[Request]:
    """Return rows whose prompts have this end, two samples of each."""
    texts = [f"{'shared words ' * 2}{number}{end}" for number in range(6)]
    given: dict[str, Any] = {
        "regex": PATTERN,
        "max_tokens": 60,
        "temperature": 1.0,
        "n": 2,
        "reasoning_tags": "<think>,</think>",
        **params,
    }
    ids = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [
        Request(index, tuple(own), SamplingParams(seed=index, **given))
        for index, own in enumerate(ids)
    ]


def outputs(engine: Engine, rows: list[Request], **config: Any) -> list[SampleOutput]:
    run = engine.reconfigured(**config).start(rows)
    answers = sorted(run, key=lambda each: each.request.index)
    assert [each.error for each in answers] == [None] * len(rows)
    return [output for each in answers for output in each.outputs]


PLACES: list[dict[str, Any]] = [
    {"max_num_seqs": 1},
    {"num_blocks": 60, "prefix_caching": False, "preemption_mode": "recompute"},
    {"max_num_batched_tokens": 7},
    {"speculate": "off"},
    {"speculate": "5"},
]


def test_a_thought_of_the_prompt_is_closed_before_the_structure(
    engine: Engine, step_by_step: Engine, tokenizer: Tokenizer
) -> None:
    rows = requests(tokenizer, "<think>", thinking_budget=BUDGET)
    free = outputs(engine, requests(tokenizer, "<think>", regex=None, ignore_eos=True))
    found = outputs(engine, rows)
    [closing] = tokenizer.encode_batch(["</think>"], add_special_tokens=False)
    for output, before in zip(found, free, strict=True):
        assert output.token_ids[:BUDGET] == before.token_ids[:BUDGET]
        assert list(output.token_ids[BUDGET : BUDGET + len(closing)]) == closing
        assert output.reasoning is not None
        assert re.fullmatch(PATTERN, output.text)
        assert output.finish_reason is FinishReason.STOP
    for place in PLACES:
        assert outputs(engine, rows, **place) == found
    assert outputs(step_by_step, rows) == found


def test_a_thought_that_does_not_end_is_cut_as_without_a_structure(
    engine: Engine, tokenizer: Tokenizer
) -> None:
    plain = {"ignore_eos": True, "max_tokens": 9}
    free = outputs(engine, requests(tokenizer, "<think>", regex=None, **plain))
    found = outputs(engine, requests(tokenizer, "<think>", **plain))
    assert found == free
    assert {output.text for output in found} == {""}
    assert {output.finish_reason for output in found} == {FinishReason.LENGTH}


def test_the_model_may_open_a_thought_where_the_prompt_does_not(
    engine: Engine, step_by_step: Engine, tokenizer: Tokenizer
) -> None:
    """The first token is one of the structure or the tag's first, whichever is likelier."""
    [[sign, *_]] = tokenizer.encode_batch(["<think>"], add_special_tokens=False)
    for bias, thinks in ((100.0, True), (-100.0, False)):
        rows = requests(tokenizer, "?", thinking_budget=BUDGET, logit_bias={sign: bias})
        found = outputs(engine, rows)
        for output in found:
            assert (output.reasoning is not None) == thinks
            assert re.fullmatch(PATTERN, output.text)
        assert outputs(step_by_step, rows) == found


@pytest.mark.parametrize(
    ("end", "tags"), [("<think></think>", "<think>,</think>"), ("<think>", "none")]
)
def test_without_a_thought_the_structure_begins_at_once(
    engine: Engine, tokenizer: Tokenizer, end: str, tags: str
) -> None:
    for output in outputs(engine, requests(tokenizer, end, reasoning_tags=tags)):
        assert output.reasoning is None
        assert re.fullmatch(PATTERN, tokenizer.decode(list(output.token_ids)))


def test_a_closing_tag_in_a_structure_is_text(engine: Engine, tokenizer: Tokenizer) -> None:
    pattern = "[ab]</think>[ab]"
    [[sign, *_]] = tokenizer.encode_batch(["<"], add_special_tokens=False)
    rows = requests(tokenizer, "?", regex=pattern, max_tokens=20)
    found = outputs(engine, rows)
    answers = [output for output in found if output.token_ids[0] != sign]
    assert answers
    for output in answers:
        assert output.reasoning is None
        assert re.fullmatch(pattern, output.text)
