"""Thoughts, from the chat template to the output: kept apart, cut, closed by a budget."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.engines import load_engine
from tests.support.jsonl import read_jsonl, write_jsonl

OPENS = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if enable_thinking is false %}<think></think>{% else %}<think>\n{% endif %}"
)
CLOSING = list(b"</think>")
BUDGET = 5


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    return make_model("llama", "thinks")


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return load_engine(EngineConfig(model=model, dtype="float32", block_size=4))


def requests(model: Path, **params: Any) -> list[Request]:
    tokenizer = Tokenizer.from_folder(model)
    texts = [f"{'shared words ' * 2}{number}<think>" for number in range(6)]
    asked = SamplingParams(max_tokens=24, reasoning_tags="<think>,</think>", **params)
    ids = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [Request(index, tuple(own), asked) for index, own in enumerate(ids)]


def answered(engine: Engine, rows: list[Request], **config: Any) -> dict[int, Completion]:
    run = engine.reconfigured(**config).start(rows)
    return {each.request.index: each for each in run}


def closing_ids(model: Path) -> list[int]:
    return Tokenizer.from_folder(model).encode_batch(["</think>"], False)[0]


SAMPLED: dict[str, Any] = {"temperature": 1.0, "n": 3, "seed": 5}
PLACES: list[dict[str, Any]] = [
    {"max_num_seqs": 1},
    {"num_blocks": 40, "prefix_caching": False},
    {"num_blocks": 40, "prefix_caching": False, "preemption_mode": "recompute"},
    {"max_num_batched_tokens": 7},
]


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_budget_closes_the_thought_wherever_it_runs(
    engine: Engine, model: Path, params: dict[str, Any]
) -> None:
    free = answered(engine, requests(model, ignore_eos=True, **params))
    asked = requests(model, ignore_eos=True, thinking_budget=BUDGET, **params)
    closed = answered(engine, asked)
    forced = closing_ids(model)
    for index, completion in closed.items():
        pairs = zip(completion.outputs, free[index].outputs, strict=True)
        for output, before in pairs:
            ids = list(output.token_ids)
            assert ids[:BUDGET] == list(before.token_ids[:BUDGET])
            assert ids[BUDGET : BUDGET + len(forced)] == forced
            assert len(ids) == 24
            assert output.reasoning is not None
    for place in PLACES:
        elsewhere = answered(engine, asked, **place)
        assert {index: each.outputs for index, each in elsewhere.items()} == {
            index: each.outputs for index, each in closed.items()
        }


def test_rows_without_a_budget_beside_it_keep_their_answers(engine: Engine, model: Path) -> None:
    rows = requests(model, **SAMPLED)
    alone = answered(engine, rows)
    budget = replace(rows[0].params, thinking_budget=2)
    mixed = answered(
        engine, [replace(row, params=budget) if row.index % 2 else row for row in rows]
    )
    assert [mixed[index].outputs for index in (0, 2, 4)] == [
        alone[index].outputs for index in (0, 2, 4)
    ]
    assert all(output.reasoning is not None for output in mixed[1].outputs)


ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "one"}]},
    {"messages": [{"role": "user", "content": "two"}], "thinking_budget": 0},
    {"messages": [{"role": "user", "content": "four"}], "reasoning_tags": "none"},
    {
        "custom_id": "five",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "five"}], "thinking_budget": 0},
    },
]


@pytest.fixture
def run(model: Path, tmp_path: Path, pagedrun: Command) -> Any:
    """Run the command on rows; return the rows of its output."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def go(rows: list[dict[str, Any]], *flags: str) -> list[dict[str, Any]]:
        write_jsonl(source, rows)
        place = ("-o", str(output), "--model", str(model), "--chat-template", OPENS)
        status, _, stderr = pagedrun("generate", source, *place, "--ordered", "--quiet", *flags)
        assert status == 0, stderr
        return read_jsonl(output)

    return go


def test_thoughts_in_the_output(run: Any, tmp_path: Path) -> None:
    flags = ("--max-tokens", "12", "--ignore-eos", "--reasoning-tags", "auto")
    cut, closed, plain, call = run(ROWS, *flags)
    assert (cut["text"], cut["finish_reason"]) == ("", "length")
    assert cut["outputs"][0]["reasoning"]
    assert closed["outputs"][0]["reasoning"] == ""
    assert closed["text"] == closed["outputs"][0]["text"] != ""
    assert plain["text"]
    assert "reasoning" not in plain["outputs"][0]
    message = call["response"]["body"]["choices"][0]["message"]
    assert (message["role"], message["reasoning"]) == ("assistant", "")
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    assert report["reasoning"] == {"rows": 3, "cut": 1}


def test_the_job_sets_variables_and_resumes_with_them(run: Any, tmp_path: Path) -> None:
    off = '{"enable_thinking": false}'
    flags = ("--max-tokens", "6", "--chat-template-kwargs", off)
    rows = run(ROWS[:2], *flags)
    assert [row["usage"]["prompt_tokens"] for row in rows] == [18, 18]
    assert "reasoning" not in rows[0]["outputs"][0]
    manifest = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert manifest["parameters"]["chat_template_kwargs"] == {
        "value": {"enable_thinking": False},
        "origin": "flag",
    }
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole.splitlines(keepends=True)[0])
    assert run(ROWS[:2], *flags, "--resume") == rows
    assert (tmp_path / "out.jsonl").read_bytes() == whole
