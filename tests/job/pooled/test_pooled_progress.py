"""Progress of a job of texts: tokens of finished texts, and rows that are still to be read."""

from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.progress.progress import line
from pagedrun.cli.progress.run_figures import ProgressFigures, ProgressFiguresListener
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.values.engine_config import EngineConfig, WindowSize
from pagedrun.paged.values.pooling import PoolingParams, Task
from tests.job.pooled.pooled_jobs import write
from tests.support.tiny_encoders import texts, write_model

NUM_ROWS, WINDOW = 30, 8


class Watch(ProgressFiguresListener):
    """Keeps the record and the figures of each step."""

    def __init__(self) -> None:
        super().__init__(warn=lambda message: None)
        self.records: list[StepRecord] = []
        self.seen: list[ProgressFigures] = []

    def on_step(self, record: StepRecord) -> None:
        super().on_step(record)
        self.records.append(record)
        self.seen.append(self.figures())


def watched(folder: Path, model: Path, words: list[str], **settings: Any) -> Watch:
    path = folder / "rows.jsonl"
    write(path, [{"text": each} for each in words])
    config = JobConfig(
        input=str(path),
        output=str(folder / "out.jsonl"),
        engine=EngineConfig(model=model, dtype="float32", max_num_batched_tokens=32),
        pooled=PoolingParams(task=Task.EMBED),
        **settings,
    )
    watch = Watch()
    run_job(config, watch)
    return watch


@pytest.fixture
def words() -> list[str]:
    """Texts of 3 to 12 words, each of them twice."""
    distinct = texts([3 + i % 10 for i in range(NUM_ROWS // 2)])
    return [each for each in distinct for _ in range(2)]


def test_every_use_of_a_text_is_done_with_it(words: list[str], model: Path, tmp_path: Path) -> None:
    """Tokens that are computed once, and counted for each use, never made the whole."""
    watch = watched(tmp_path, model, words)
    done = [each.prompt_tokens_done for each in watch.records]
    assert len(done) > 3
    assert done == sorted(done)
    assert 0 < done[0] < done[-1] == watch.records[-1].all_prompt_tokens
    assert all(each.time_left is not None for each in watch.seen)
    guesses = [each.eta_s for each in watch.seen if each.eta_s is not None]
    assert guesses[-1] == 0


def test_shared_tokens_are_done_too(words: list[str], tmp_path: Path) -> None:
    write_model(tmp_path / "decoder", "qwen3")
    sharing = [f"w1 w2 w3 w4 w5 w6 {each}" for each in words]
    watch = watched(tmp_path, tmp_path / "decoder", sharing)
    assert watch.records[-1].prompt_tokens_done == watch.records[-1].all_prompt_tokens


def test_rows_are_so_many_or_more_until_the_last_window(
    words: list[str], model: Path, tmp_path: Path
) -> None:
    watch = watched(tmp_path, model, words, window=WindowSize(rows=WINDOW))
    for figures in watch.seen:
        is_last = figures.rows_total == NUM_ROWS
        assert figures.has_more_rows is not is_last
        assert f"/{figures.rows_total}{'' if is_last else '+'} rows" in line(figures)
        assert ("ETA at least" in line(figures)) is not is_last
    assert {each.rows_total for each in watch.seen} == {8, 16, 24, 30}


def test_a_line_has_no_figures_of_answers(words: list[str], model: Path, tmp_path: Path) -> None:
    watch = watched(tmp_path, model, words)
    for figures in watch.seen:
        told = line(figures)
        assert "prompt " in told
        assert not any(each in told for each in ("generation", "KV cache", "preemptions", "reqs"))
