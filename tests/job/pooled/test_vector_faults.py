"""Calls of the file system fail while vectors are written and become an array or a table: no file
under the output's name has other numbers, and the next command makes the same file."""

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from pagedrun.paged.execution.pooling.pooling_engine import PoolingEngine
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.model import PooledModel
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.pooling import PoolingParams, Task
from tests.job.output.faulty_os import failing
from tests.job.pooled.pooled_jobs import write

PARAMS = PoolingParams(task=Task.EMBED)
NUM_LAST = 12  # calls, from the last vector on


class OpenedOnce(PooledModel):
    """Model whose weights are read once for all jobs."""

    engine: PoolingEngine | None = None

    def load_engine(self) -> PoolingEngine:
        self.engine = self.engine or super().load_engine()
        return self.engine


@pytest.fixture(scope="module")
def opened(model: Path) -> OpenedOnce:
    return OpenedOnce(EngineConfig(model=model, dtype="float32"), model, PARAMS)


def job(config: JobConfig, opened: OpenedOnce) -> None:
    run_job(config, None, lambda *_: opened)


@pytest.mark.parametrize(
    ("ending", "and_after", "num_tried"),
    [
        ("npy", True, NUM_LAST),
        *(
            pytest.param(*case, 100, marks=pytest.mark.long)
            for case in product(["npy", "parquet"], [False, True])
        ),
    ],
)
def test_calls_fail(
    ending: str, and_after: bool, num_tried: int, model: Path, opened: OpenedOnce, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    write(rows, [{"text": "w1 w2"}, {"text": "w3"}, {"id": "none"}])
    whole = JobConfig(
        input=str(rows),
        output=str(tmp_path / f"whole.{ending}"),
        engine=EngineConfig(model=model, dtype="float32"),
        pooled=PARAMS,
    )
    job(whole, opened)
    with failing(0, 0, and_after=False) as undisturbed:
        job(replace(whole, output=str(tmp_path / f"again.{ending}")), opened)
    assert NUM_LAST < undisturbed.num_calls < 100
    expected = Path(whole.output).read_bytes()
    for place in range(max(undisturbed.num_calls - num_tried, 0) + 1, undisturbed.num_calls + 1):
        here = tmp_path / str(place)
        here.mkdir()
        config = replace(whole, output=str(here / f"out.{ending}"))
        with failing(place, place, and_after=and_after) as faulty:
            try:
                job(config, opened)
            except (OutputError, UsageError):
                assert faulty.fired
        assert faulty.fired
        output = Path(config.output)
        if output.exists():
            assert output.read_bytes() == expected, faulty.fired
        job(replace(config, resume=True), opened)
        assert output.read_bytes() == expected, faulty.fired
        assert not list(here.glob(".*.tmp")), faulty.fired
        shutil.rmtree(here)
