"""A run with a deadline ends in time, with whole rows, and goes on to the bytes of one without."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.progress import JobListener, Tally
from pagedrun.paged.job.signals import DEADLINE, JobInterrupted, exit_status
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.command import Command
from tests.support.comparable import comparable_rows
from tests.support.engines import load_engine
from tests.support.jsonl import read_jsonl, write_jsonl

NUM_GROUPS = 4
HOUR = 3600.0


class UntilRows(JobListener):
    """Lets the deadline come when so many rows are done."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def on_tally(self, tally: Tally) -> None:
        if tally.num_rows == self.num_rows:
            os.kill(os.getpid(), DEADLINE)


@pytest.fixture(scope="module")
def config(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    """Rows in groups that share a prefix, one group after the other, greedy and sampled."""
    folder = tmp_path_factory.mktemp("deadline")
    rng = random.Random(7)
    rows: list[dict[str, Any]] = []
    for group in range(NUM_GROUPS):
        shared = [rng.randrange(256) for _ in range(20)]
        for number in range(10):
            row: dict[str, Any] = {"prompt_token_ids": [*shared, number], "group": group}
            rows.append({**row, "temperature": 0.8 * (number % 2), "max_tokens": 2 + number % 4})
    model = make_model("qwen3", "deadline", max_position_embeddings=64)
    write_jsonl(folder / "rows.jsonl", rows)
    job = JobConfig(
        input=str(folder / "rows.jsonl"),
        output=str(folder / "whole.jsonl"),
        engine=EngineConfig(model=model, dtype="float32", max_num_seqs=4),
    )
    run_job(job)
    return job


def test_the_rows_done_are_of_all_groups_and_the_rest_follows(
    config: JobConfig, tmp_path: Path
) -> None:
    """In the order of the file, or of sharing, they would be of the first group alone."""
    output = tmp_path / "out.jsonl"
    job = replace(config, output=str(output), deadline=HOUR)
    with pytest.raises(JobInterrupted, match="Stopped at the deadline") as caught:
        run_job(job, UntilRows(12))
    assert exit_status(caught.value.signum) == 4
    assert "12 of 40 rows saved" in caught.value.__notes__[0]
    groups = {row["input"]["group"] for row in read_jsonl(output)}
    assert len(groups) >= NUM_GROUPS - 1
    run_job(replace(job, resume=True, deadline=None))
    assert comparable_rows(output) == comparable_rows(config.output)


def test_a_table_is_made_when_the_rest_is_there(config: JobConfig, tmp_path: Path) -> None:
    """A table of the rows so far, that passes for the whole, or a journal that lost rows."""
    columns = ("index", "text", "outputs")
    whole = replace(config, output=str(tmp_path / "whole.parquet"), columns=columns)
    run_job(whole)
    output = tmp_path / "out.parquet"
    job = replace(whole, output=str(output), deadline=HOUR)
    with pytest.raises(JobInterrupted, match="Stopped at the deadline"):
        run_job(job, UntilRows(12))
    assert not output.exists()
    assert len(read_jsonl(tmp_path / "out.parquet.journal.jsonl")) == 12
    run_job(replace(job, resume=True, deadline=None))
    assert output.read_bytes() == Path(whole.output).read_bytes()


def test_answers_of_an_earlier_run_go_on_behind_a_deadline(
    config: JobConfig, tmp_path: Path
) -> None:
    """Rows copied twice, or forgotten, by the run that does the rest."""
    rows = read_jsonl(config.input)
    write_jsonl(tmp_path / "short.jsonl", [{**row, "max_tokens": 2} for row in rows])
    short = replace(
        config, input=str(tmp_path / "short.jsonl"), output=str(tmp_path / "short.out.jsonl")
    )
    run_job(short)
    output = tmp_path / "out.jsonl"
    job = replace(config, output=str(output), deadline=HOUR, from_output=Path(short.output))
    with pytest.raises(JobInterrupted, match="Stopped at the deadline"):
        run_job(job, UntilRows(25))
    assert len(read_jsonl(output)) == 25
    counts = run_job(replace(job, resume=True, deadline=None)).report["rows"]
    assert counts["skipped"] == 25
    assert counts["copied"] + counts["continued"] == 15
    assert comparable_rows(output) == comparable_rows(config.output)


def test_a_deadline_that_is_far_changes_no_byte(config: JobConfig, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    run_job(replace(config, output=str(output), deadline=HOUR))
    assert comparable_rows(output) == comparable_rows(config.output)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_rows_that_would_not_be_finished_are_not_begun(config: JobConfig) -> None:
    engine = load_engine(config.engine)
    requests = [Request(index, (index,), SamplingParams(max_tokens=2)) for index in range(9)]
    run = engine.start(requests, deadline=Deadline(time.monotonic()))
    assert list(run) == []
    assert run.is_cut
    whole = engine.start(requests, deadline=Deadline(time.monotonic() + HOUR))
    assert sorted(each.request.index for each in whole) == list(range(9))
    assert not whole.is_cut


def test_time_that_is_up_before_the_weights_are_there_leaves_nothing(
    pagedrun: Command, config: JobConfig, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    args = ["generate", config.input, "-o", output, "--model", config.engine.model]
    status, _, err = pagedrun(*args, "--deadline", "0.000001s")
    assert status == 4
    assert "Stopped at the deadline; nothing was written" in err
    assert not output.exists()


def test_what_is_no_span_of_time_is_refused(pagedrun: Command, config: JobConfig) -> None:
    args = ["generate", config.input, "--model", config.engine.model]
    for wrong in ("soon", "0", "-5"):
        status, _, err = pagedrun(*args, f"--deadline={wrong}")
        assert status == 2, wrong
        assert "such as 90s, 45m, 2h or 1h30m" in " ".join(err.split())


@pytest.mark.long
def test_a_minute_is_a_minute(make_model: MakeModel, tmp_path: Path) -> None:
    """The whole command: status 4 within five seconds of it, and rows from all over the file."""
    rng = random.Random(3)
    rows = [
        {"prompt_token_ids": [rng.randrange(256) for _ in range(40)], "max_tokens": 200}
        for _ in range(20_000)
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    model = make_model("qwen3", "minute", max_position_embeddings=256)
    args = ["generate", "rows.jsonl", "--model", str(model), "--quiet", "--ignore-eos"]
    args += ["--deadline", "60s"]
    began = time.monotonic()
    command = [sys.executable, "-m", "pagedrun", *args]
    assert subprocess.run(command, cwd=tmp_path, timeout=300).returncode == 4
    assert abs(time.monotonic() - began - 60) <= 5
    done = read_jsonl(tmp_path / "rows.out.jsonl")
    assert 0 < len(done) < len(rows)
    mean = sum(row["index"] for row in done) / len(done)
    assert abs(mean - 10_000) < 4 * 5774 / len(done) ** 0.5  # of numbers drawn from all rows
