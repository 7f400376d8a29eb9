"""What a finished run tries on its prompts, and what may never go wrong there."""

from pathlib import Path

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.planned.template_advice import NUM_ROWS, check_sharing
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.metrics.report_sections import EngineReport, TemplateAdvice, empty_engine_report
from pagedrun.paged.values.engine_config import EngineConfig
from tests.support.scripted_model import ScriptedModel

TEMPLATE = "{{ date }} " + "You answer questions about our opening hours. " * 20 + "{{ question }}"


def report(hit_rate: float = 0.1, run_s: float = 60.0) -> EngineReport:
    report = empty_engine_report()
    report["prefix"]["possible_hit_rate"] = hit_rate
    report["time"]["run_s"] = run_s
    return report


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    path = tmp_path / "in.csv"
    rows = "".join(f"2026-{index:04d},Are you open?\n" for index in range(200))
    path.write_text("date,question\n" + rows)
    return JobConfig(
        input=str(path),
        output=str(tmp_path / "out.jsonl"),
        engine=EngineConfig(tmp_path),
        prompts=PromptConfig(template=PromptTemplate(TEMPLATE)),
    )


def check(config: JobConfig, engine_report: EngineReport, **limits: int) -> TemplateAdvice | None:
    tokenizer = ScriptedModel().open()(config.engine, Path(), None).tokenizer
    return check_sharing(config, engine_report, tokenizer, **limits)


def test_a_column_that_breaks_sharing_is_found(config: JobConfig) -> None:
    advice = check(config, report())
    assert advice is not None
    assert advice["found"][0]["columns"] == ["date"]
    assert advice["sample_rows"] == NUM_ROWS


def test_short_runs_and_runs_that_share_are_not_held_up(config: JobConfig) -> None:
    assert check(config, report(run_s=3.0)) is None
    assert check(config, report(hit_rate=0.8)) is None


def test_huge_rows_are_not_tried_for_minutes(config: JobConfig) -> None:
    advice = check(config, report(), max_chars=500)
    assert advice is not None
    assert 0 < advice["sample_rows"] < 20


def test_an_input_that_has_gone_bad_meanwhile_fails_no_finished_job(config: JobConfig) -> None:
    Path(config.input).write_text('date,question\n2026,"never closed\n')
    assert check(config, report()) is None
