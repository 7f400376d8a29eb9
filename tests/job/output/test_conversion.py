"""A job whose output is made of its journal at the end, killed or refused by the disk at every
step of it: the next command makes the very same files, and nothing is left beside them."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output.output_file import OutputError, OutputFile
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.request import Completion, Request
from tests.job.output import faulty_os
from tests.job.output.faulty_os import FaultyOs, failing
from tests.support.scripted_model import ScriptedModel, config_for, echo

ROWS = [{"prompt": "a", "n": 2}, {"prompt": "é\n,"}, {"prompt": "c", "id": 7}]
ENOUGH = 200
KILLED = 9
SIDE_FILES = {".run.json", ".report.json", ".snapshot.npz"}


class DeadlyOs(FaultyOs):
    """Kills the process at a call of the file system, before it is made."""

    def _faulty(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.num_calls += 1
            if self.num_calls == self._place:
                os._exit(KILLED)
            return None if name == "fsync" else real(*args, **more)

        return call


def killed_at(config: JobConfig, place: int) -> bool:
    """Run a job in a process that dies at a call; return whether it came so far."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with pytest.MonkeyPatch.context() as patch:
                deadly = DeadlyOs(place, 0, and_after=False)
                for module in faulty_os.MODULES:
                    patch.setattr(f"pagedrun.paged.{module}.os", deadly)
                run_job(config, None, ScriptedModel().open())
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, KILLED)
    return status == KILLED


def failed_at(config: JobConfig, place: int) -> bool:
    """Run a job with a call of the file system that fails; return whether it came so far."""
    with failing(place, place, and_after=False) as faulty:
        try:
            run_job(config, None, ScriptedModel().open())
        except (OutputError, UsageError):
            assert faulty.fired
    return bool(faulty.fired)


OUTPUTS = {"out.parquet": None, "out.csv": 2, "out.jsonl.gz": None}  # and how many shards


def undisturbed_job(folder: Path, name: str) -> JobConfig:
    """Run a job that nothing happens to."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    config = config_for(folder, ROWS, output=str(folder / "done" / name), shards=OUTPUTS[name])
    config = replace(config, out_dir=folder / "done")
    run_job(config, None, ScriptedModel().open())
    return config


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    return undisturbed_job(tmp_path_factory.mktemp("whole"), "out.parquet")


def files_of(folder: Path, name: str) -> dict[str, bytes]:
    """Return the files of the output, those beside it left out."""
    sides = {f"{name}{suffix}" for suffix in SIDE_FILES}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in sides}


FAST = {("out.parquet", False, True), ("out.csv", True, False)}


@pytest.mark.parametrize(
    ("name", "is_killed", "is_anew"),
    [
        pytest.param(*case, marks=() if case in FAST else pytest.mark.long)
        for case in product(OUTPUTS, [True, False], [True, False])
    ],
)
def test_stopped_at_every_step(name: str, is_killed: bool, is_anew: bool, tmp_path: Path) -> None:
    """Rows that are lost with the journal, a table cut off under the output's name, a journal or
    a part of a file that is left for good."""
    stop = killed_at if is_killed else failed_at
    undisturbed = undisturbed_job(tmp_path, name)
    done = Path(undisturbed.output).parent
    expected = files_of(done, name)
    for place in count(1):
        assert place < ENOUGH
        here = tmp_path / str(place)
        if is_anew:
            shutil.copytree(done, here)
        config = replace(undisturbed, output=str(here / name), out_dir=here)
        was_stopped = stop(replace(config, overwrite=is_anew), place)
        if here.exists():
            for path, data in files_of(here, name).items():
                if not path.startswith(".") and ".journal.jsonl" not in path:
                    assert data == expected[path]
        run_job(replace(config, resume=True), None, ScriptedModel().open())
        assert files_of(here, name) == expected
        shutil.rmtree(here)
        if not was_stopped:
            break
    assert place > 20, "the job makes more calls than that"


def test_a_finished_output_needs_no_journal(undisturbed: JobConfig) -> None:
    """Answers that are computed again because only their table is there."""
    model = ScriptedModel()
    result = run_job(replace(undisturbed, resume=True), None, model.open())
    assert model.num_loads == 0
    assert result.report["rows"] == {"total": 3, "ok": 0, "failed": 0, "skipped": 3}


def test_another_shape_is_no_resume(undisturbed: JobConfig) -> None:
    """A table with other columns than those asked for, said to be finished."""
    with pytest.raises(UsageError, match=r"written with another .*columns"):
        run_job(replace(undisturbed, resume=True, columns=("id",)), None, ScriptedModel().open())


def test_an_output_that_is_there_is_refused(undisturbed: JobConfig) -> None:
    with pytest.raises(UsageError, match=r"exists; pass .*resume"):
        run_job(undisturbed, None, ScriptedModel().open())


def test_failed_rows_are_tried_again(place: Path) -> None:
    """A journal that goes although rows failed: their neighbours would be computed again."""
    rows = [*ROWS, "torn {"]
    config = config_for(place, rows, output=str(place / "out.parquet"))
    first = run_job(config, None, ScriptedModel().open())
    journal = place / "out.parquet.journal.jsonl"
    assert first.journal_path == journal
    assert len(journal.read_bytes().splitlines()) == 4
    again = replace(config, resume=True, retry_errors=True)
    result = run_job(again, None, ScriptedModel().open())
    assert result.report["rows"] == {"total": 4, "ok": 0, "failed": 1, "skipped": 3}
    journal.unlink()
    with pytest.raises(UsageError, match="its journal"):
        run_job(again, None, ScriptedModel().open())


def test_a_file_of_a_killed_retry_is_not_taken_for_a_changed_one(tmp_path: Path) -> None:
    """The first run's SHA-256 is not that of the file that the second makes."""

    def refuse(request: Request) -> Completion:
        if request.index == 1:
            return Completion(request, (), 0, RowError("nan_logits", "the output has NaN"))
        return echo(request)

    expected = files_of(Path(undisturbed_job(tmp_path, "out.jsonl.gz").output).parent, "")
    folder = tmp_path / "failed"
    folder.mkdir()
    config = config_for(tmp_path, ROWS, output=str(folder / "out.jsonl.gz"))
    run_job(config, None, ScriptedModel(refuse).open())
    shutil.copytree(folder, tmp_path / "whole")
    again = replace(config, output=str(tmp_path / "whole" / "out.jsonl.gz"), resume=True)
    again = replace(again, retry_errors=True)
    with failing(0, 0, and_after=False) as undisturbed:
        run_job(again, None, ScriptedModel().open())
    for num_left in range(8):  # calls after that at which it is killed
        here = tmp_path / str(num_left)
        shutil.copytree(folder, here)
        again = replace(again, output=str(here / "out.jsonl.gz"))
        assert killed_at(again, undisturbed.num_calls - num_left)
        run_job(again, None, ScriptedModel().open())
        assert (here / "out.jsonl.gz").read_bytes() == expected["out.jsonl.gz"]


def test_rows_that_came_later_are_not_lost(place: Path) -> None:
    """A longer input whose new rows would take the place of the old ones."""
    source = place / "in.jsonl"
    config = config_for(place, ROWS, output=str(place / "out.parquet"))
    run_job(config, None, ScriptedModel().open())
    data = (place / "out.parquet").read_bytes()
    source.write_text(source.read_text() + '{"prompt": "new"}\n')
    with pytest.raises(UsageError):
        run_job(replace(config, resume=True), None, ScriptedModel().open())
    assert (place / "out.parquet").read_bytes() == data
    assert not (place / "out.parquet.journal.jsonl").exists()


def test_a_journal_removed_while_it_was_opened(tmp_path: Path) -> None:
    """Two runs, one ending as the other begins: rows written to a file without a name."""
    path = tmp_path / "journal"
    first = OutputFile.claim(str(path), overwrite=False, input_name="-")
    first.begin()
    descriptor = os.open(path, os.O_RDWR)
    first.remove()
    first.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", lambda *args: descriptor)
        with pytest.raises(UsageError, match="just finished"):
            OutputFile.claim(str(path), overwrite=True, input_name="-")
