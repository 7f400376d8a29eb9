"""What a run took, kept for plans: found again for the same, and for nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from pagedrun.paged.job.planned.timed_run import MIN_RUN_SECONDS, TimedRun, save_timings
from pagedrun.paged.metrics.report_sections import JobReport, empty_engine_report
from pagedrun.paged.metrics.step_costs import StepCosts
from pagedrun.paged.planning.forecast import MARGIN, run_time
from pagedrun.paged.planning.forecast_sections import ForecastFigures, RunTime
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.recipes.demo import demo_model_folder

COSTS: StepCosts = {
    "step_s": 0.01,
    "prompt_token_s": 0.001,
    "generated_token_s": 0.002,
    "usual_token_s": 0.0005,
}
CONFIG = EngineConfig(model=demo_model_folder())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def report(run_s: float = MIN_RUN_SECONDS) -> JobReport:
    engine = empty_engine_report()
    times = {**engine["time"], "run_s": run_s, "load_s": 2.0, "compile_s": 1.0}
    found = {**engine, "time": times, "hardware": {"device": "cpu"}, "step_costs": COSTS}
    return cast(JobReport, found)


def test_the_next_plan_finds_it_and_that_of_another_model_does_not(
    cache: Path, tmp_path: Path
) -> None:
    assert TimedRun.read(CONFIG, "cpu") is None
    save_timings(CONFIG, report())
    assert TimedRun.read(CONFIG, "cpu") == TimedRun(2.0, 1.0, COSTS)
    assert TimedRun.read(replace(CONFIG, max_num_seqs=3), "cpu") is not None
    for other in (replace(CONFIG, dtype="float32"), replace(CONFIG, quantization="int8")):
        assert TimedRun.read(other, "cpu") is None
    assert TimedRun.read(CONFIG, "cuda") is None
    (tmp_path / "config.json").write_text("{}")
    assert TimedRun.read(replace(CONFIG, model=tmp_path), "cpu") is None


def test_what_was_over_at_once_says_nothing(cache: Path) -> None:
    save_timings(CONFIG, report(MIN_RUN_SECONDS / 2))
    assert TimedRun.read(CONFIG, "cpu") is None


@pytest.mark.parametrize("data", [b"", b"[]", b'{"load_s": -1}', b'{"load_s": "x"}', b"\xff"])
def test_a_damaged_file_is_as_if_it_were_not_there(cache: Path, data: bytes) -> None:
    save_timings(CONFIG, report())
    (path,) = cache.rglob("*.json")
    assert set(json.loads(path.read_bytes())) == {"load_s", "compile_s", *COSTS}  # no name, no text
    path.write_bytes(data)
    assert TimedRun.read(CONFIG, "cpu") is None


def test_a_cache_that_cannot_be_written_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    save_timings(CONFIG, report())
    assert TimedRun.read(CONFIG, "cpu") is None


def forecast(generated: int) -> ForecastFigures:
    figures: dict[str, Any] = {
        "rows": {"planned": 100, "duplicates": 0, "simulated": 50},
        "tokens": {"computed": 1000, "preempted_recomputed": 0, "generated": generated},
        "steps": {"count": 200},
    }
    return cast(ForecastFigures, figures)


def test_answers_may_have_a_token_or_all_they_may() -> None:
    def found_for(ignore_eos: bool) -> RunTime:
        return run_time(
            forecast(5000),
            COSTS,
            read_s=1.0,
            load_s=2.0,
            compile_s=30.0,
            max_num_batched_tokens=100,
            ignore_eos=ignore_eos,
        )

    found, sure = found_for(False), found_for(True)
    usual_s = (10 * 64 + 1000 + 100 * 8) * 0.0005
    assert found["low_s"] == pytest.approx((3 + usual_s) / MARGIN)
    usual_s = (400 * 64 + 1000 + 5000 * 8) * 0.0005
    assert usual_s > 1 + 400 * 0.01 + 5000 * 0.002
    assert found["high_s"] == pytest.approx((3 + 30 + usual_s) * MARGIN)
    assert sure["low_s"] == pytest.approx((3 + 1 + 400 * 0.01 + 5000 * 0.002) / MARGIN)
    assert sure["high_s"] == found["high_s"]
