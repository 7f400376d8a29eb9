"""`pagedrun plan --task`: the figures of the run, before it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.planned import timed_run
from tests.job.pooled.pooled_jobs import run, write
from tests.support.command import run_command
from tests.support.tiny_encoders import texts, write_model

Capsys = pytest.CaptureFixture[str]


def plan(capsys: Capsys, *args: object) -> dict[str, Any]:
    status, out, err = run_command(capsys, "plan", *args, "--dtype", "float32", "--json", "--quiet")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{out}.report.json").read_text())
    return found


def padded(lengths: list[int]) -> int:
    """Tokens of batches of 32 as sentence-transformers makes them: longest first."""
    lengths = sorted(lengths)[::-1]
    return sum(
        max(lengths[i : i + 32]) * len(lengths[i : i + 32]) for i in range(0, len(lengths), 32)
    )


@pytest.mark.invariant("a plan is its run")
@pytest.mark.parametrize("batched", [64, 4096])
def test_the_plan_of_an_encoder_is_its_run(
    batched: int, model: Path, tmp_path: Path, capsys: Capsys
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "v.npy"
    lengths = [3 + 7 * (i % 31) for i in range(70)]
    given = texts(lengths)
    write(rows, [{"text": each} for each in (*given, given[5], given[6])] + [{"id": "none"}])
    flags = ("--model", model, "--max-num-batched-tokens", batched)
    found = plan(capsys, rows, "--task", "embed", *flags)
    run(capsys, "embed", rows, "-o", out, *flags, status=3)
    told = report(out)
    assert found["rows"] == {"total": 73, "planned": 72, "refused": {"missing_prompt": 1}}
    assert found["texts"]["total"] == told["pooling"]["texts"] == 72
    assert found["texts"]["distinct"] == told["pooling"]["distinct_texts"] == 70
    assert found["tokens"]["all"] == told["tokens"]["prompt"]
    assert found["tokens"]["computed"] == told["tokens"]["computed"] == sum(lengths) + 2 * 70
    assert found["steps"] == told["pooling"]["steps"]
    assert found["tokens"]["padded"] == told["pooling"]["padded_tokens"]
    assert found["tokens"]["padded"] == padded([each + 2 for each in (*lengths, 38, 45)])
    assert found["tokens"]["shared_prefix"] == 0


@pytest.mark.invariant("a plan is its run")
def test_the_plan_of_a_causal_model_counts_shared_prefixes(tmp_path: Path, capsys: Capsys) -> None:
    folder, rows, out = tmp_path / "model", tmp_path / "rows.jsonl", tmp_path / "r.jsonl"
    known = {"tie_word_embeddings": True, "is_original_qwen3_reranker": True}
    write_model(folder, "qwen3", "ForCausalLM", **known)
    documents = texts([120, 130, 140], seed=2)
    write(rows, [{"query": each, "documents": documents} for each in texts([4, 5, 6], seed=3)])
    flags = ("--model", folder, "--pair-order", "document")
    found = plan(capsys, rows, "--task", "rerank", *flags)
    run(capsys, "rerank", rows, "-o", out, *flags)
    told = report(out)
    assert found["shares_prefixes"]
    assert found["tokens"]["shared_prefix"] == told["pooling"]["shared_prefix_tokens"] > 500
    assert found["tokens"]["computed"] == told["tokens"]["computed"]
    assert found["steps"] == told["pooling"]["steps"]


def test_chunks_and_prompts_are_planned(model: Path, tmp_path: Path, capsys: Capsys) -> None:
    rows = tmp_path / "rows.jsonl"
    write(rows, [{"text": each} for each in texts([700, 5])])
    found = plan(capsys, rows, "--task", "embed", "--model", model)
    assert found["rows"]["refused"] == {"prompt_too_long": 1}
    found = plan(
        capsys, rows, "--task", "embed", "--model", model, "--chunks", "mean", "--prompt", "w1 "
    )
    assert found["texts"]["total"] == 4
    assert found["texts"]["longest"] == 300


def test_a_run_times_the_next_plan(
    model: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(timed_run, "MIN_RUN_SECONDS", 0.0)
    rows = tmp_path / "rows.jsonl"
    write(rows, [{"text": each} for each in texts([5 + i for i in range(40)])])
    flags = ("--model", model, "--max-num-batched-tokens", 40)
    assert plan(capsys, rows, "--task", "embed", *flags)["run_time"] is None
    run(capsys, "embed", rows, "-o", tmp_path / "v.npy", *flags)
    time = plan(capsys, rows, "--task", "embed", *flags)["run_time"]
    assert 0 < time["low_s"] < time["high_s"]
    _, _, err = run_command(capsys, "plan", rows, "--task", "embed", *flags, "--dtype", "float32")
    assert "with loading" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--task", "embed", "--max-tokens", 4), "--max-tokens has no effect on the plan of pag"),
        (("--task", "embed", "--calibrate"), "--calibrate has no effect on the plan of pagedrun"),
        (("--task", "classify", "--prompt-name", "x"), "--prompt-name has no effect on the plan"),
        (("--pair-order", "query"), "--pair-order goes with --task"),
        (("--task", "score"), "'score' is not one of"),
        (("--task", "rerank"), "has no head that scores pairs"),
    ],
)
def test_flags_without_an_effect_are_refused(
    flags: tuple[object, ...], message: str, model: Path, rows: Path, capsys: Capsys
) -> None:
    status, _, err = run_command(capsys, "plan", rows, "--model", model, *flags)
    assert status == 2
    assert message in " ".join(err.split())
