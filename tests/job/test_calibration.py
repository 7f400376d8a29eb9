"""A calibration says what steps take, in time, and plans find it."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.planned.timed_run import MIN_STEPS, NUM_NEW, TimedRun, calibrate
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.recipes.demo import demo_model_folder
from tests.support.jsonl import write_jsonl

MODEL = demo_model_folder()
CONFIG = EngineConfig(model=MODEL, device="cpu", max_num_seqs=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("max_model_len", [None, NUM_NEW])
def test_what_it_found_is_kept(max_model_len: int | None) -> None:
    """Prompts and answers longer than the model may read would leave no step to time."""
    config = replace(CONFIG, max_model_len=max_model_len)
    timed = calibrate(config, MODEL, JobListener(), limit_s=3600.0)
    assert timed is not None
    assert timed.costs["usual_token_s"] > 0
    assert timed.load_s > 0
    assert TimedRun.read(config, "cpu") == timed


def test_no_step_is_begun_when_the_time_is_up() -> None:
    assert MIN_STEPS > 1
    assert calibrate(CONFIG, MODEL, JobListener(), limit_s=0.0) is None
    assert TimedRun.read(CONFIG, "cpu") is None


def test_a_plan_knows_the_time_of_the_first_run(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt_token_ids": [1, 2, 3]}, {"prompt": "Who?"}])
    job = JobConfig(input=str(tmp_path / "rows.jsonl"), output="unused", engine=CONFIG)
    assert plan_file(job, JobListener())["run_time"] is None
    planned = plan_file(job, JobListener(), calibrates=True)["run_time"]
    assert planned is not None
    assert 0 < planned["low_s"] < planned["high_s"]
