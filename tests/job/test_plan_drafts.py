"""Drafts of a plan: the figures of the run that gave the recorded answers."""

import random
import string
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.planned import draft_forecast
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.planned.timed_run import TimedRun
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.speculation.costs import RowCosts
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.families import RECURRENT, save_tiny
from tests.support.heard import Heard
from tests.support.jsonl import jsonl, write_jsonl
from tests.support.plan_jobs import generated_rows, job

Plan = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def text(draw: random.Random, count: int) -> str:
    return "".join(draw.choices(string.ascii_letters, k=count))


TOKENS = sorted(pre_tokenizers.ByteLevel.alphabet())  # of the model; others are special
LENGTH = 80
PROMPTS = [text(random.Random(seed), 90) for seed in range(64)]


def recorded(answer: str, index: int = 0, **changes: Any) -> dict[str, Any]:
    """Return an output row."""
    output = {
        "index": 0,
        "text": answer,
        "token_ids": [TOKENS.index(letter) for letter in answer],
        "finish_reason": "length",
        "stop_reason": None,
        "cumulative_logprob": None,
        "logprobs": None,
    }
    return {
        "index": index,
        "id": f"row-{index}",
        "text": answer,
        "finish_reason": "length",
        "outputs": [output],
        "usage": {"prompt_tokens": 90, "cached_tokens": 0, "completion_tokens": len(answer)},
        "input": {},
        "error": None,
        **changes,
    }


@pytest.fixture
def plan(tmp_path: Path, make_model: MakeModel) -> Plan:
    """Return the plan of the first prompts with recorded answers, rows or bytes."""

    def planned(
        answers: Iterable[object] | bytes | None,
        num_rows: int = 8,
        listener: JobListener | None = None,
        **flags: Any,
    ) -> Any:
        rows = [{"prompt": each} for each in PROMPTS[:num_rows]]
        path = write_jsonl(tmp_path / "rows.jsonl", rows)
        old = None if answers is None else tmp_path / "old.jsonl"
        if answers is not None and old is not None:
            old.write_bytes(answers if isinstance(answers, bytes) else jsonl(answers))
        sampling = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
        defaults = {"speculate": "auto", "max_num_seqs": 1, "sampling": sampling}
        config: JobConfig = job(path, make_model("qwen3", "drafts"), **{**defaults, **flags})
        return plan_file(config, listener or JobListener(), answers=old)

    return planned


def copies(count: int) -> list[dict[str, Any]]:
    """Return answers that repeat their prompts."""
    return [recorded(each, index) for index, each in enumerate(PROMPTS[:count])]


def others(count: int) -> list[dict[str, Any]]:
    """Return answers in which nothing occurs again."""
    draw = random.Random(99)
    return [recorded(text(draw, 90), index) for index in range(count)]


def test_answers_that_repeat_their_prompts_take_fewer_steps(plan: Plan) -> None:
    steps = plan(copies(8))["steps"]
    drafts = steps["drafts"]
    assert (drafts["rows"], drafts["tokens"]) == (8, 8 * LENGTH)
    assert drafts["tokens_per_step"] > 1.5
    assert 0 < drafts["accepted"] == drafts["by_source"]["prompt_lookup"] <= drafts["proposed"]
    assert drafts["possible"] == steps["count"] == 8 * LENGTH
    assert drafts["count"] == round(steps["count"] / drafts["tokens_per_step"])


def test_answers_in_which_nothing_repeats_take_all_steps(plan: Plan) -> None:
    steps = plan(others(8))["steps"]
    assert steps["drafts"]["accepted"] == 0
    assert steps["drafts"]["tokens_per_step"] == 1
    assert steps["drafts"]["count"] == steps["count"]


def done_and_planned(
    make_model: MakeModel, tmp_path: Path, rows: list[dict[str, Any]], **flags: Any
) -> tuple[Any, Any]:
    """Run a job, and plan it with its own answers; return the figures of both."""
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    config = job(path, make_model("qwen3", "drafts"), dtype="float32", **flags)
    report: Any = run_job(config).report
    planned: Any = plan_file(config, JobListener(), answers=Path(config.output))
    return report["speculation"], planned["steps"]["drafts"]


FIGURES = ("proposed", "accepted", "by_source", "tokens_per_step")


@pytest.mark.parametrize(
    "flags",
    [{"max_num_seqs": 1}, {"max_num_seqs": 6}, {"num_blocks": 45}, {"max_num_batched_tokens": 40}],
    ids=str,
)
def test_a_plan_says_what_a_run_with_a_number_of_drafts_reports(
    flags: dict[str, Any], make_model: MakeModel, tmp_path: Path
) -> None:
    """Exactly: rows, order, pool and drafters are the same."""
    rows = generated_rows(40)
    done, planned = done_and_planned(make_model, tmp_path, rows, speculate="4", **flags)
    assert done["accepted"] > 30
    assert {name: planned[name] for name in FIGURES} == {name: done[name] for name in FIGURES}


@pytest.mark.parametrize("max_num_seqs", [1, 6])
def test_a_plan_says_about_what_a_run_with_auto_reports(
    max_num_seqs: int, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where steps with as many rows take as long: which steps a run records differs a little."""
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 64.0 + 8.0 * rows)
    alike = {"prompt": PROMPTS[0], "max_tokens": 100}
    rows = [{**alike, "logit_bias": {str(index): -1.0}} for index in range(50)]
    flags = {"speculate": "auto", "max_num_seqs": max_num_seqs}
    done, planned = done_and_planned(make_model, tmp_path, rows, **flags)
    assert done["tokens_per_step"] > 1.1
    assert planned["tokens_per_step"] == pytest.approx(done["tokens_per_step"], rel=0.1)
    assert planned["accepted"] == pytest.approx(done["accepted"], rel=0.15)


def test_few_answers_stand_for_the_batch_of_the_run(plan: Plan) -> None:
    """With the rows of all, a draft costs as much; four sequences alone would get more drafts."""

    def tokens_per_step(num_answers: int, num_rows: int) -> float:
        steps = plan(copies(num_answers), num_rows, max_num_seqs=64)["steps"]
        return float(steps["drafts"]["tokens_per_step"])

    assert tokens_per_step(64, 64) <= tokens_per_step(4, 64) < tokens_per_step(4, 4)


def test_above_64_sequences_nothing_is_drafted(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.paged.speculation.speculation.MAX_RUNNING", 4)
    steps = plan(copies(8), max_num_seqs=5)["steps"]
    assert 0 < steps["drafts"]["possible"] < steps["count"]
    saved = steps["count"] - steps["drafts"]["count"]
    assert 0 < saved < steps["drafts"]["possible"]


def test_the_time_of_a_run_has_the_steps_with_drafts(plan: Plan, make_model: MakeModel) -> None:
    costs = {"step_s": 1.0, "prompt_token_s": 0.0, "generated_token_s": 0.01, "usual_token_s": 0.01}
    config = job(Path("unused"), make_model("qwen3", "drafts")).engine
    TimedRun(0.0, 0.0, costs).keep(config, "cpu")  # type: ignore[arg-type]
    without, drafted = plan(None)["run_time"], plan(copies(8))["run_time"]
    assert drafted["high_s"] < 0.8 * without["high_s"]
    assert plan(others(8))["run_time"]["high_s"] == pytest.approx(without["high_s"], rel=0.05)


def test_texts_are_encoded_where_there_are_no_tokens_of_the_model(plan: Plan) -> None:
    """Answers of OpenAI batch files, and those of a model with a larger vocabulary."""
    expected = plan(copies(4))["steps"]["drafts"]
    foreign, calls = copies(4), []
    for row in foreign:
        row["outputs"][0]["token_ids"] = [10**6]
        body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": row["text"]}}]}
        response = {"status_code": 200, "request_id": "r", "body": body}
        calls.append(
            {
                "id": "batch_req_0",
                "custom_id": row["id"],
                "response": response,
                "error": None,
                "index": row["index"],
            }
        )
    assert plan(foreign)["steps"]["drafts"] == expected
    assert plan(calls)["steps"]["drafts"] == expected


def test_lines_that_answer_no_row_are_left_out(plan: Plan) -> None:
    failed = recorded("", 4, text=None, outputs=[], error={"code": "x", "message": "y"})
    lines = jsonl([*others(2), failed, recorded(PROMPTS[5], 5, outputs=[])])
    more = jsonl([recorded(PROMPTS[3], 3, id="another"), recorded(PROMPTS[0], 0), *others(3)[2:]])
    drafts = plan(b'{"index": 0,\n\xff\xfe\n[]\n' + lines + more + b'{"index": 7')["steps"][
        "drafts"
    ]
    assert (drafts["rows"], drafts["accepted"]) == (3, 0)


@pytest.mark.parametrize(
    "answers",
    [
        b"",
        b"\n\n",
        b'{"index": 0,\n',
        b"\x00\xff" * 1000,
        b"[" * 100_000,
        jsonl([recorded("abc", 100)]),
        jsonl([recorded("abc", 0, id="other")]),
        jsonl([recorded("", 0)]),
        jsonl([recorded("abc", 0, error={"code": "x"})]),
        jsonl([recorded("abc", 0, outputs=[], scores=[])]),
        jsonl([recorded("abc", 0, outputs="none")]),
        jsonl([{"index": 0, "id": "row-0", "error": None, "choices": [None, {"message": 3}]}]),
    ],
    ids=range(12),
)
def test_answers_to_none_of_the_rows_are_refused(answers: bytes, plan: Plan) -> None:
    with pytest.raises(UsageError, match=r"^answers .*old\.jsonl has no text that .*limit 50"):
        plan(answers)


def test_half_a_character_is_no_text(plan: Plan) -> None:
    row = recorded("abc")
    row["outputs"][0] |= {"text": "\ud800", "token_ids": [10**6]}
    with pytest.raises(UsageError, match="has no text that"):
        plan([row])


def test_a_file_that_cannot_be_read_is_refused_before_the_input_is(tmp_path: Path) -> None:
    config = job(tmp_path / "no input", tmp_path / "no model")
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match=r"^answers .* cannot be read \(.*limit 50"):
            plan_file(config, JobListener(), answers=path)


def test_only_the_first_answers_of_a_large_output_are_replayed(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_forecast, "MOST_TOKENS", 2 * LENGTH + 40)
    assert plan(copies(8))["steps"]["drafts"]["rows"] == 3
    monkeypatch.setattr(draft_forecast, "MOST_ROWS", 2)
    assert plan(copies(8))["steps"]["drafts"]["rows"] == 2


def test_a_run_without_drafts_is_told(plan: Plan) -> None:
    heard = Heard()
    assert "drafts" not in plan(copies(2), listener=heard, speculate="off")["steps"]
    [warning] = heard.warnings
    assert warning == f"{option('answers')} has no effect: a run with these settings has no drafts"


def test_recurrent_models_draft(plan: Plan, tmp_path: Path) -> None:
    plan(copies(2))
    save_tiny(RECURRENT["qwen3_next"], tmp_path / "recurrent")
    config = job(tmp_path / "rows.jsonl", tmp_path / "recurrent", speculate="auto")
    steps = plan_file(config, JobListener(), answers=tmp_path / "old.jsonl")["steps"]
    assert steps["drafts"]["rows"] == 2
