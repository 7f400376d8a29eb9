"""A plan says beforehand what the run of the same file reports afterwards."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import ModelError, UsageError
from tests.conftest import MakeModel
from tests.support.every_pair import every_pair
from tests.support.jsonl import write_jsonl
from tests.support.plan_jobs import LAYERS, assert_told, generated_rows, job


@pytest.mark.parametrize(
    ("flags", "num_rows"),
    [
        ({}, 160),
        ({"num_blocks": 45, "preemption_mode": "recompute"}, 160),
        ({"num_blocks": 45, "swap_space_bytes": 20_000}, 160),
        ({"block_size": 8, "max_num_batched_tokens": 70}, 160),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [
                ({"num_blocks": 120}, 160),
                ({"num_blocks": 45}, 160),
                ({"prefix_caching": False, "num_blocks": 130}, 160),
                ({"block_size": 32, "max_num_seqs": 3}, 80),
                ({"num_blocks": 12}, 160),
            ]
        ),
    ],
    ids=str,
)
def test_a_run_does_what_was_planned(
    make_model: MakeModel, tmp_path: Path, flags: dict[str, Any], num_rows: int
) -> None:
    config = job(
        write_jsonl(tmp_path / "rows.jsonl", generated_rows(num_rows)),
        make_model("qwen3", "plan"),
        **flags,
    )
    forecast = plan_file(config, JobListener())
    assert forecast["rows"]["is_simulated_whole"]
    assert forecast["rows"]["duplicates"] > 4
    assert forecast["prefix"]["hit_tokens"] > 2000
    assert_told(forecast, run_job(config).report)


def rows_of_a_long_prefix(seed: int = 0) -> list[dict[str, Any]]:
    """Rows that attention reads together, and short ones that grow past a window of 50 tokens."""
    draw = random.Random(seed)

    def text(low: int, high: int) -> str:
        return "".join(draw.choices("abcdefgh ", k=draw.randint(low, high)))

    prefix = text(270, 270)
    rows = [{"prompt": prefix + text(1, 40), "max_tokens": draw.randint(1, 12)} for _ in range(66)]
    rows += [{"prompt": text(1, 70), "max_tokens": draw.randint(20, 60)} for _ in range(18)]
    rows += [{"prompt": text(30, 45), "max_tokens": 25, "n": 3, "temperature": 1.0}]
    return rows


@every_pair(
    in_turn="layers",
    layers=list(LAYERS),
    # 30 are fewer than the window, and less than what the rows decode and begin in one step.
    max_num_batched_tokens=[30, 256],
    sharing=[{}, {"prefix_once": False}, {"prefix_caching": False}],
)
def test_attention_reads_what_was_planned(
    make_model: MakeModel,
    tmp_path: Path,
    layers: str,
    max_num_batched_tokens: int,
    sharing: dict[str, Any],
) -> None:
    family, overrides = LAYERS[layers]
    config = job(
        write_jsonl(tmp_path / "rows.jsonl", rows_of_a_long_prefix()),
        make_model(family, "plan", **overrides),
        max_num_batched_tokens=max_num_batched_tokens,
        **sharing,
    )
    forecast = plan_file(config, JobListener())
    assert forecast["rows"]["is_simulated_whole"]
    prefix = forecast["prefix"]
    reads_together = layers in ("no window", "both") and not sharing
    saved = prefix["attention_bytes_without_sharing"] - prefix["attention_bytes_read"]
    assert (saved > 0) == reads_together
    assert prefix["attention_bytes_read"] > 0
    assert_told(forecast, run_job(config).report)


def test_what_is_computed_again_is_read_again(make_model: MakeModel, tmp_path: Path) -> None:
    family, overrides = LAYERS["both"]
    config = job(
        write_jsonl(tmp_path / "rows.jsonl", generated_rows(90)),
        make_model(family, "plan", **overrides),
        num_blocks=45,
        preemption_mode="recompute",
        prompts=PromptConfig(raw=True),
    )
    forecast = plan_file(config, JobListener())
    assert forecast["tokens"]["preempted_recomputed"] > 0
    assert_told(forecast, run_job(config).report)


def test_a_file_of_several_windows(make_model: MakeModel, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", generated_rows(160, seed=1))
    model = make_model("qwen3", "plan")
    config = job(rows, model, num_blocks=90, window=WindowSize(rows=45))
    forecast = plan_file(config, JobListener())
    assert forecast["rows"]["is_simulated_whole"]
    assert_told(forecast, run_job(config).report)


def test_what_is_not_simulated_is_planned(make_model: MakeModel, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", generated_rows(320))
    config = job(path, make_model("qwen3", "plan"))
    whole = plan_file(config, JobListener())
    part = plan_file(config, JobListener(), max_simulated_rows=40)
    assert part["rows"]["simulated"] == 40
    assert not part["rows"]["is_simulated_whole"]
    for name in ("prompt", "generated", "longest_row"):
        assert part["tokens"][name] == whole["tokens"][name]
    # Whole blocks only: the parts of blocks that a run copies are seen by simulating alone.
    assert 0 <= whole["tokens"]["cached"] - part["tokens"]["cached"] < 320 * 15
    assert part["tree"] == whole["tree"]
    assert part["steps"]["count"] < whole["steps"]["count"]


def test_a_file_without_an_answerable_row(make_model: MakeModel, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": ""}, {"text": "no prompt"}])
    forecast = plan_file(job(path, make_model("qwen3", "plan")), JobListener())
    assert forecast["rows"]["refused"] == {"empty_prompt": 1, "missing_prompt": 1}
    assert forecast["rows"]["planned"] == 0
    assert forecast["tokens"]["computed"] == 0
    json.dumps(forecast, allow_nan=False)


def test_no_text_of_the_file_unless_asked_for(make_model: MakeModel, tmp_path: Path) -> None:
    rows = [{"prompt": f"SECRET instructions for everybody {i}"} for i in range(40)]
    config = job(write_jsonl(tmp_path / "rows.jsonl", rows), make_model("qwen3", "plan"))
    told = json.dumps(plan_file(config, JobListener()))
    assert "SECRET" not in told
    shown = plan_file(config, JobListener(), show_text=True)
    text = shown["tree"]["top_prefixes"][0]["text"]
    assert text.startswith("<|im_start|>user\nSECRET instructions")


def test_what_a_run_refuses_a_plan_refuses(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("qwen3", "plan")
    path = write_jsonl(
        tmp_path / "rows.jsonl", [{"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}]
    )
    with pytest.raises(UsageError, match="unique"):
        plan_file(job(path, model), JobListener())
    path = write_jsonl(tmp_path / "other.jsonl", [{"prompt": "a"}])
    with pytest.raises(UsageError, match="max_model_len"):
        plan_file(job(path, model, max_model_len=10_000), JobListener())
    small = make_model("qwen3", "small", vocab_size=260)
    with pytest.raises(ModelError, match="tokenizer"):
        plan_file(job(path, small), JobListener())


@pytest.mark.heavy("a process of its own, in which torch is missing")
def test_weights_and_torch_are_not_needed(make_model: MakeModel, tmp_path: Path) -> None:
    """A copy of the folder without its weights, in a process that has not imported torch."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((make_model("qwen3", "plan") / name).read_bytes())
    path = write_jsonl(tmp_path / "rows.jsonl", generated_rows(30))
    script = (
        "import sys; from pagedrun.cli.main import main\n"
        f"sys.argv = ['pagedrun', 'plan', {str(path)!r}, '--model', {str(folder)!r}]\n"
        "sys.argv += ['--device', 'cpu']\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"
