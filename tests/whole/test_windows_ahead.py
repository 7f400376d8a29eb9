"""Windows are read and planned beside the run: no pause at their borders, and no other outcome."""

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.values.engine_config import EngineConfig, WindowSize
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.tiny_models import tiny_engine

Planners = Callable[[], list[str]]
SECONDS = 240.0  # for a thread to do what it can do at once
WINDOW = 8


@pytest.fixture(scope="module")
def engine() -> Engine:
    made = tiny_engine(dtype="float32", max_num_seqs=3, num_blocks=24)
    assert len(list(made.start(window(0)))) == WINDOW  # compiles what no thread should wait for
    return made


def window(number: int) -> list[Request]:
    """Rows that share a prefix with those of other windows, and end one after the other."""
    return [
        Request(
            index,
            (*range(20), index % 3, index),
            SamplingParams(max_tokens=3 + index % 5, ignore_eos=True, temperature=index % 2 * 1.0),
        )
        for index in range(number * WINDOW, (number + 1) * WINDOW)
    ]


def test_a_run_goes_on_while_the_next_window_is_read_and_planned(
    engine: Engine, planners: Planners
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def more() -> Iterator[list[Request]]:
        reading.set()
        assert go_on.wait(SECONDS)
        yield window(1)

    with closing(engine.start(window(0), more=more())) as run, ExitStack() as at_the_end:
        at_the_end.callback(go_on.set)  # or a planner that waits for it would never end
        completions = iter(run)
        early = [next(completions)]
        assert reading.wait(SECONDS)  # though rows of the first window have not begun yet
        assert run.scheduler.num_planned
        early += [next(completions), next(completions)]
        assert not go_on.is_set()
        go_on.set()
        indices = {each.request.index for each in (*early, *completions)}
    assert indices == set(range(2 * WINDOW))
    assert planners() == []


def test_the_last_rows_of_a_window_run_beside_the_first_of_the_next(engine: Engine) -> None:
    together: set[tuple[int, int]] = set()

    def on_step(_: StepRecord) -> None:
        rows = [each.request.index for each in run.scheduler.running]
        together.update((one // WINDOW, two // WINDOW) for one in rows for two in rows)

    with closing(
        engine.start(window(0), more=iter([window(1), window(2)]), hooks=RunHooks(on_step))
    ) as run:
        assert len(list(run)) == 3 * WINDOW
    assert {(0, 1), (1, 2)} <= together


def outcome(
    engine: Engine, *, late: bool
) -> tuple[dict[int, Completion], list[Any], dict[str, Any]]:
    """Answers, steps and pool of a run whose windows are there long before they are needed, or only
    when nothing else is left to admit."""
    out = [threading.Event() for _ in range(3)]  # a window is out; its rows may still run
    made = [threading.Event() for _ in range(3)]
    num_taken = 0

    def more() -> Iterator[list[Request]]:
        for number in (1, 2):
            if late:
                assert out[number - 1].wait(SECONDS)
            yield window(number)
            made[number].set()  # the thread asks for more: the one before was planned and taken

    def on_window() -> None:
        nonlocal num_taken
        num_taken += 1

    def on_step(_: StepRecord) -> None:
        if not run.scheduler.num_planned:
            out[num_taken].set()

    run = engine.start(window(0), more=more(), hooks=RunHooks(on_step, on_window))
    answers = {each.request.index: each for each in run}
    report = run.report()
    timeline = [{**each, "t": 0} for each in report["timeline"]]
    columns = run.snapshot().holdings.columns()
    return answers, timeline, {name: np.asarray(each).tolist() for name, each in columns.items()}


def test_nothing_depends_on_when_a_window_is_ready(engine: Engine) -> None:
    early, late = outcome(engine, late=False), outcome(engine, late=True)
    assert early == late
    alone = {
        each.request.index: each.outputs
        for each in engine.start([*window(0), *window(1), *window(2)])
    }
    assert {index: each.outputs for index, each in early[0].items()} == alone


def job(source: Path, model: Path) -> JobConfig:
    """Four rows make a window."""
    engine = EngineConfig(model=model, dtype="float32", max_num_seqs=2)
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    output = str(source.with_name("out.jsonl"))
    return JobConfig(
        input=str(source),
        output=output,
        engine=engine,
        sampling=sampling,
        window=WindowSize(rows=4),
    )


def lines(count: int) -> bytes:
    return b"".join(json.dumps({"prompt": f"row {i}"}).encode() + b"\n" for i in range(count))


def test_an_error_in_a_later_window_ends_the_job_with_its_rows_written(
    make_model: MakeModel, tmp_path: Path, planners: Planners
) -> None:
    noise = np.random.default_rng(0).integers(97, 122, 400_000, dtype=np.uint8).tobytes()
    packed = gzip.compress(lines(6) + json.dumps({"prompt": noise.decode()}).encode() + lines(6))
    source = tmp_path / "rows.jsonl.gz"
    source.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UsageError, match="is truncated"):
        run_job(job(source, make_model("qwen3", "ahead")))
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert {0, 1} <= {row["index"] for row in written} <= {0, 1, 2, 3}  # two may be running
    assert all(row["error"] is None for row in written)
    assert planners() == []


def test_a_job_that_is_stopped_waits_for_no_pipe(
    make_model: MakeModel, tmp_path: Path, planners: Planners
) -> None:
    """The planner waits for rows that never come; the job ends all the same."""
    source = tmp_path / "rows"
    os.mkfifo(source)
    held: list[int] = []

    def write() -> None:
        held.append(os.open(source, os.O_WRONLY))
        os.write(held[0], lines(6))  # and the pipe stays open

    class Impatient(JobListener):
        def on_step(self, record: StepRecord) -> None:
            raise KeyboardInterrupt

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(KeyboardInterrupt):
        run_job(job(source, make_model("qwen3", "ahead")), Impatient())
    writer.join()
    os.close(held[0])
    assert planners() == []
