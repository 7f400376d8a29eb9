"""The program as a user runs it: real processes, the bundled model, files on disk."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pagedrun import LLM, SamplingParams
from pagedrun.paged.metrics.snapshot_file import read_snapshot
from pagedrun.recipes import demo
from tests.conftest import MakeModel
from tests.support.jsonl import read_jsonl
from tests.whole.command_server import CommandServer

CONTRACT_KEYS = {
    "rows": {"total", "ok", "failed", "skipped"},
    "tokens": {"prompt", "cached", "computed", "generated", "preempted_recomputed"},
    "time": {"load_s", "plan_s", "run_s", "prompt_tokens_per_s", "generated_tokens_per_s"},
    "kv": {
        "block_size",
        "num_blocks",
        "bytes_per_token",
        "pool_bytes",
        "peak_blocks",
        "utilization_at_peak",
        "tail_waste",
        "contiguous_utilization",
        "contiguous_max_requests",
        "paged_max_requests",
    },
    "prefix": {
        "hit_tokens",
        "hit_rate",
        "achievable_hit_rate",
        "hits",
        "misses",
        "shared_blocks_peak",
        "bytes_saved",
        "attention_bytes_read",
        "attention_bytes_without_sharing",
    },
    "copy_on_write": {"forks", "block_copies"},
    "preemptions": {"swap", "recompute"},
    "memory": {"weights", "kv_pool", "activations_peak", "other", "free", "device_total"},
    "config": set(),
    "hardware": set(),
}
ROW_KEYS = {"index", "id", "text", "finish_reason", "outputs", "usage", "input", "error"}


def pagedrun(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagedrun", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def demo_run(server: CommandServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    stdout = folder / "stdout.txt"
    args: list[str | Path] = ["generate", demo.demo_prompts_path()]
    status, told = server.run(args, folder, stdout=str(stdout))
    assert status == 0, told
    assert stdout.read_text() == ""  # stdout is for data
    return folder / "prompts.out.jsonl", told


def test_the_demo_answers_its_questions(demo_run: tuple[Path, str]) -> None:
    output, _ = demo_run
    rows = read_jsonl(output)
    questions = read_jsonl(demo.demo_prompts_path())
    assert sorted(row["index"] for row in rows) == list(range(len(questions)))
    assert {row["id"] for row in rows} == {question["id"] for question in questions}
    right = sum(row["text"].strip() == row["input"]["expected"] for row in rows)
    assert right / len(rows) >= 0.99
    assert all(set(row) == ROW_KEYS for row in rows)


def test_the_demo_finds_every_shared_prefix(demo_run: tuple[Path, str]) -> None:
    report = json.loads(Path(f"{demo_run[0]}.report.json").read_text())
    prefix = report["prefix"]
    assert prefix["achievable_hit_rate"] > 0.9
    assert prefix["hit_rate"] == pytest.approx(prefix["achievable_hit_rate"], rel=0.01)


def test_the_report_keeps_the_contract(demo_run: tuple[Path, str]) -> None:
    report = json.loads(Path(f"{demo_run[0]}.report.json").read_text())
    for name, keys in CONTRACT_KEYS.items():
        assert keys <= set(report[name]), name
    point = {"t", "step", "running", "waiting", "blocks_used", "blocks_shared", "blocks_cached"}
    assert all(point | {"tokens"} == set(each) for each in report["timeline"])
    assert report["rows"]["total"] == sum(report["rows"][k] for k in ("ok", "failed", "skipped"))
    tokens = report["tokens"]
    assert tokens["prompt"] == tokens["cached"] + tokens["computed"]
    rows = read_jsonl(demo_run[0])
    assert tokens["prompt"] == sum(row["usage"]["prompt_tokens"] for row in rows)
    assert tokens["cached"] == sum(row["usage"]["cached_tokens"] for row in rows)
    assert tokens["generated"] == sum(row["usage"]["completion_tokens"] for row in rows)
    outputs = [output for row in rows for output in row["outputs"]]
    reasons = Counter(output["finish_reason"] for output in outputs)
    assert report["finish_reasons"] == dict(reasons)
    memory = dict(report["memory"])
    assert memory.pop("device_total") == sum(memory.values())


def test_the_snapshot_agrees_with_report_and_rows(demo_run: tuple[Path, str]) -> None:
    report = json.loads(Path(f"{demo_run[0]}.report.json").read_text())
    snapshot = read_snapshot(Path(f"{demo_run[0]}.snapshot.npz"))
    rows = read_jsonl(demo_run[0])
    prompts = Counter(row["usage"]["prompt_tokens"] for row in rows)
    answers = Counter(len(output["token_ids"]) for row in rows for output in row["outputs"])
    lengths = snapshot.lengths
    assert {t: n for t, n in zip(lengths.tokens, lengths.prompts, strict=True) if n} == prompts
    assert {t: n for t, n in zip(lengths.tokens, lengths.answers, strict=True) if n} == answers
    assert (snapshot.num_blocks, snapshot.block_size) == (
        report["kv"]["num_blocks"],
        report["kv"]["block_size"],
    )
    held = (snapshot.samples.ref_counts > 0).sum(axis=1)
    by_step = dict(zip(snapshot.samples.steps.tolist(), held.tolist(), strict=True))
    for record in report["timeline"]:
        assert by_step[record["step"]] == record["blocks_used"]
    # What a row's blocks were found with is what its `cached_tokens` say, up to a copied part.
    found = snapshot.holdings.where(snapshot.holdings.found)
    blocks = Counter(found.row.tolist())
    size = snapshot.block_size
    for row in rows:
        cached = row["usage"]["cached_tokens"]
        assert blocks[row["index"]] * size - 1 <= cached < (blocks[row["index"]] + 1) * size


def test_the_screen_names_the_model_the_accuracy_and_the_memory(demo_run: tuple[Path, str]) -> None:
    _, screen = demo_run
    assert "bundled demo model" in screen.splitlines()[0]
    for word in ("accuracy", "hit rate", "KV pool", "utilization"):
        assert word in screen
    assert "\x1b" not in screen  # not a terminal: no escapes


def test_a_file_of_every_kind_of_row(server: CommandServer, tmp_path: Path) -> None:
    """Good, sampled, malformed and impossible rows side by side: one answer each, in order."""
    lines = [
        '{"id": "plain", "prompt": "Hello"}',
        '{"id": "chat", "messages": [{"role": "user", "content": "Show Ada Moss."}]}',
        '{"prompt_token_ids": [5, 6, 7], "n": 3, "temperature": 1.0, "max_tokens": 5}',
        '{"id": "broken", "prompt": ',
        "",
        '{"id": "nothing"}',
        '{"id": "[/red]\\u001b[2J", "prompt": "' + "x " * 5000 + '"}',
        '{"prompt_token_ids": [999999]}',
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    flags = ("--model", "demo", "--ordered", "--max-tokens", "9")
    status, told = server.run(["generate", "rows.jsonl", *flags], tmp_path)
    assert status == 3, told
    assert "\x1b" not in told
    rows = read_jsonl(tmp_path / "rows.out.jsonl")
    assert [row["index"] for row in rows] == list(range(7))
    codes = [row["error"] and row["error"]["code"] for row in rows]
    assert codes[:3] == [None, None, None]
    assert codes[3] == "invalid_json_line"
    assert rows[3]["error"]["line"] == 4
    assert codes[5:] == ["prompt_too_long", "token_id_out_of_range"]
    assert len(rows[2]["outputs"]) == 3
    assert all(set(row) == ROW_KEYS for row in rows)


def broken_copy(source: Path, target: Path, fault: str) -> Path:
    """Copy a model folder and break it in the way that `fault` names."""
    shutil.copytree(source, target)
    weights = target / "model.safetensors"
    if fault == "only .bin weights":
        weights.rename(target / "pytorch_model.bin")
    elif fault == "a missing shard":
        index = json.loads((target / "model.safetensors.index.json").read_text())
        (target / sorted(set(index["weight_map"].values()))[-1]).unlink()
    elif fault == "a misshapen tensor":
        tensors = load_file(weights)
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
        save_file(tensors, weights)
    elif fault == "a tokenizer larger than the embedding":
        tensors = load_file(weights)
        config = json.loads((target / "config.json").read_text())
        config["vocab_size"] = 260
        (target / "config.json").write_text(json.dumps(config))
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in tensors:
                tensors[name] = tensors[name][:260].clone()
        save_file(tensors, weights)
    return target


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("a wrong folder", ["nowhere"]),
        ("only .bin weights", ["safetensors", ".bin"]),
        ("a missing shard", ["model-0000"]),
        ("a misshapen tensor", ["model.norm.weight", "63", "64"]),
        ("a tokenizer larger than the embedding", ["tokenizer", "261", "260"]),
    ],
)
def test_a_bad_model_folder_gets_one_sentence(
    fault: str,
    words: list[str],
    make_model: MakeModel,
    tmp_path: Path,
    server: CommandServer,
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Hello"}\n')
    shards = {"max_shard_size": "100KB"} if fault == "a missing shard" else {}
    good = make_model("qwen3", "good", **shards)
    model = tmp_path / "nowhere"
    if fault != "a wrong folder":
        model = broken_copy(good, tmp_path / "model", fault)
    status, told = server.run(["generate", "rows.jsonl", "--model", str(model)], tmp_path)
    assert status == 2, told
    (sentence,) = [line for line in told.splitlines() if line.startswith("Error")]
    assert all(word in sentence for word in words), sentence
    assert "Traceback" not in told
    assert not (tmp_path / "rows.out.jsonl").exists()


def test_help_imports_no_torch(tmp_path: Path) -> None:
    done = pagedrun("generate", "--help", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "pagedrun.cli.generate" in imported
    assert not imported & {"torch", "transformers", "numba", "numpy"}


def test_the_same_from_python(demo_run: tuple[Path, str]) -> None:
    expected = {row["id"]: row["text"] for row in read_jsonl(demo_run[0])}
    questions = read_jsonl(demo.demo_prompts_path())[:20]
    llm = LLM(model=demo.demo_model_folder())
    completions = llm.generate(
        [question["messages"] for question in questions], SamplingParams(max_tokens=256)
    )
    assert [each.outputs[0].text for each in completions] == [
        expected[question["id"]] for question in questions
    ]
    assert llm.report["prefix"]["hit_tokens"] > 0
