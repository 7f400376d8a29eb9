"""Every call of the file system fails once, or for good: no row is lost, none is there twice."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.values.errors import UsageError
from tests.job.output.faulty_os import failing
from tests.support.manifests import as_if_killed
from tests.support.scripted_model import ScriptedModel, config_for

ROWS: list[Any] = [
    {"prompt": "a"},
    {"prompt": "b", "n": 2},
    "torn {",
    {"prompt": "é" * 30},
    {"x": 1},
]
NUM_PICKS = 5  # of the most kinds of failure that a call has
ENOUGH = 500


def model_place(folder: Path) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "ordered"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> JobConfig:
    """A job that nothing happened to."""
    config = config_for(model_place(tmp_path_factory.mktemp("whole")), ROWS, ordered=request.param)
    run_job(config, None, ScriptedModel().open())
    return config


@pytest.fixture(scope="module", params=["from the start", "resumed", "failed rows again"])
def begun(
    request: pytest.FixtureRequest, undisturbed: JobConfig, tmp_path_factory: pytest.TempPathFactory
) -> JobConfig:
    """The same job before the run to be disturbed: nothing is there, or what a killed run left."""
    folder = model_place(tmp_path_factory.mktemp("begun"))
    changes: dict[str, Any] = {"output": str(folder / "out.jsonl")}
    if request.param != "from the start":
        done = Path(undisturbed.output)
        (folder / "out.jsonl").write_bytes(done.read_bytes()[: done.stat().st_size * 2 // 3])
        shutil.copy(f"{done}.run.json", folder / "out.jsonl.run.json")
        as_if_killed(folder / "out.jsonl.run.json")
        changes |= {"resume": True, "retry_errors": request.param == "failed rows again"}
    return replace(undisturbed, **changes)


def attempt(config: JobConfig, place: int, pick: int, *, and_after: bool) -> tuple[list[str], bool]:
    """Run a job with a failing file system; return what failed, and whether the job says it ended
    well."""
    with failing(place, pick, and_after=and_after) as faulty:
        try:
            run_job(config, None, ScriptedModel().open())
        except (OutputError, UsageError):
            return faulty.fired, False
    return faulty.fired, True


def assert_valid(path: Path) -> None:
    """Whole rows, each once, up to the last newline."""
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    indices = [json.loads(line)["index"] for line in lines[:-1]]
    assert len(indices) == len(set(indices))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place where renaming takes no time, if there is one: it is done thousands of times."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.parametrize("and_after", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "first_pick", [0, *(pytest.param(pick, marks=pytest.mark.long) for pick in range(1, NUM_PICKS))]
)
def test_every_call_fails(
    first_pick: int, and_after: bool, undisturbed: JobConfig, begun: JobConfig, folder: Path
) -> None:
    expected = sorted(Path(undisturbed.output).read_bytes().splitlines())
    for place in count(1):
        assert place < ENOUGH
        here = folder / str(place)
        shutil.copytree(Path(begun.output).parent, here)
        config = replace(begun, output=str(here / "out.jsonl"))
        fired, is_well = attempt(config, place, first_pick + place, and_after=and_after)
        output = Path(config.output)
        assert_valid(output)
        if is_well:
            assert sorted(output.read_bytes().splitlines()) == expected, fired
        else:
            assert fired
        assert attempt(replace(config, resume=True), 0, 0, and_after=False) == ([], True)
        data = output.read_bytes()
        assert sorted(data.splitlines()) == expected, fired
        if config.ordered:
            assert data == Path(undisturbed.output).read_bytes()
        names = {path.name.removeprefix("out.jsonl") for path in here.glob("*out*")}
        assert names <= {"", ".run.json", ".report.json", ".snapshot.npz", ".digests"}, fired
        assert not list(here.glob(".*.tmp")), fired
        shutil.rmtree(here)
        if not fired:
            break
    assert place > 20, "the job makes more calls than that"
