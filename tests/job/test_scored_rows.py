"""Rows that are scored, from file to file: what is written, resumed, repeated and reported."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.values.engine_config import EngineConfig
from tests.conftest import MakeModel
from tests.support.jsonl import read_jsonl, write_jsonl

CHOICES = ["yes", "no", "perhaps not"]
ROWS: list[dict[str, Any]] = [
    {
        "id": "text",
        "prompt": "The sky is blue today",
        "raw": True,
        "prompt_logprobs": 1,
        "max_tokens": 0,
    },
    {"id": "choice", "prompt": "Is it blue? ", "continuations": CHOICES},
    {"id": "same", "prompt": "Is it blue? ", "continuations": CHOICES},
    {"id": "answer", "prompt": "Is it blue?", "logprobs": 2, "max_tokens": 9, "n": 2},
    {"id": "other", "prompt": "Is it blue?", "logprobs": False, "max_tokens": 3},
    {"id": "short", "prompt": "x", "raw": True, "prompt_logprobs": 0, "max_tokens": 1},
]


def run(
    folder: Path, source: Path, output: Path, engine: dict[str, Any] | None = None, **job: Any
) -> JobResult:
    config = EngineConfig(model=folder, dtype="float32", **(engine or {}))
    return run_job(
        JobConfig(input=str(source), output=str(output), engine=config, ordered=True, **job)
    )


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "scored_rows")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in.jsonl", ROWS)
    return tmp_path / "in.jsonl"


def test_what_is_written(folder: Path, source: Path, tmp_path: Path) -> None:
    report = run(folder, source, tmp_path / "out.jsonl").report
    text, choice, same, answer, other, short = read_jsonl(tmp_path / "out.jsonl")
    assert (text["text"], text["finish_reason"]) == ("", "length")
    first, *tokens = text["prompt_logprobs"]
    assert first is None
    assert len(tokens) == text["usage"]["prompt_tokens"] - 1
    assert list(tokens[0]) == ["token_id", "text", "logprob", "rank", "top"]
    assert "".join(token["text"] for token in tokens) == ROWS[0]["prompt"][1:]
    assert [list(top) for top in tokens[0]["top"]] == [["token_id", "text", "logprob", "rank"]]
    assert short["prompt_logprobs"] == [None]

    scores = choice["scores"]
    assert [score["text"] for score in scores] == CHOICES
    names = ["text", "logprob", "num_tokens", "is_greedy", "token_logprobs"]
    assert [list(score) for score in scores] == [names] * 3
    assert scores[0]["num_tokens"] == len(" yes")  # bytes are tokens; the space comes first
    assert choice["text"] == max(scores, key=lambda each: each["logprob"])["text"]
    assert (choice["outputs"], choice["finish_reason"]) == ([], "stop")
    assert choice["usage"]["completion_tokens"] == 0
    assert same["scores"] == scores
    assert sorted([same["usage"]["cached_tokens"], choice["usage"]["cached_tokens"]])[1] > 0

    for output in answer["outputs"]:
        logprobs = [token["logprob"] for token in output["logprobs"]]
        assert output["cumulative_logprob"] == sum(logprobs)
        assert [token["token_id"] for token in output["logprobs"]] == output["token_ids"]
    assert other["outputs"][0]["logprobs"] is None
    assert "prompt_logprobs" not in other
    assert "scores" not in other

    assert "accuracy" not in report
    found = report["scored_prompts"]
    known = [token["logprob"] for token in tokens]
    assert (found["rows"], found["tokens"]) == (2, len(known))
    assert found["perplexity"] == pytest.approx(math.exp(-sum(known) / len(known)))


def test_accuracy_by_the_likeliest_continuation(folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"prompt": "Is it?", "continuations": CHOICES, "expected": f" {c}"} for c in CHOICES]
    write_jsonl(source, rows)
    report = run(folder, source, output).report
    assert report["accuracy"] == {"expected": 3, "correct": 1}
    assert report["finish_reasons"] == {"stop": 3}
    assert "scored_prompts" not in report


@pytest.mark.parametrize("engine", [{}, {"max_num_seqs": 1, "max_num_batched_tokens": 7}], ids=str)
@pytest.mark.parametrize("num_kept", [0, 2, 5])
def test_resumed_rows_have_the_same_bytes(
    folder: Path, source: Path, tmp_path: Path, engine: dict[str, Any], num_kept: int
) -> None:
    output = tmp_path / "out.jsonl"
    run(folder, source, output)
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:num_kept]) + lines[num_kept][:20])
    run(folder, source, output, engine, resume=True)
    found = [_without_cached(line) for line in output.read_bytes().splitlines()]
    assert found == [_without_cached(line) for line in lines]


def _without_cached(line: bytes) -> dict[str, Any]:
    """What the cache has had for a row depends on what else has run."""
    row: dict[str, Any] = json.loads(line)
    del row["usage"]["cached_tokens"]
    return row


def test_columns_of_a_csv_file(folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text(
        "prompt,raw,prompt_logprobs,max_tokens,continuations\n"
        'abc,TRUE,0,0,\nIs it?,,,4,"[""yes"", ""no""]"\n'
    )
    run(folder, source, output)
    text, choice = read_jsonl(output)
    assert len(text["prompt_logprobs"]) == 3
    assert [score["text"] for score in choice["scores"]] == ["yes", "no"]
