"""Simulated jobs, as many as fit into the time of a default run; more by `make test-simulation`."""

import random
from pathlib import Path

import pytest

from pagedrun.paged.job.output.output_file import OutputFile
from pagedrun.paged.job.output.saved_rows import FinishedRows
from tests.simulation.__main__ import simulate
from tests.simulation.disk import DiskModel, RecordedDisk
from tests.simulation.jobs import OUTPUTS

JOBS = {
    "out.jsonl": 25,
    "out.csv": 15,
    "out.jsonl.gz": 10,
    "out.parquet": 20,
    "vectors.npy": 35,
    "vectors.parquet": 30,
}
LONG_JOBS = 2000


@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_lost(output: str) -> None:
    figures = simulate(range(JOBS[output]), output)
    assert figures.cuts > figures.jobs == JOBS[output]
    if output == "out.jsonl":
        assert figures.preemptions, "pools are large enough"


@pytest.mark.long
@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_lost_in_many_jobs(output: str) -> None:
    simulate(range(1000, 1000 + LONG_JOBS), output)


def test_lines_that_were_cut_do_not_come_back(tmp_path: Path) -> None:
    """They might be those of a job that was replaced, under the manifest of the new one."""
    path, disk = tmp_path / "out.jsonl", RecordedDisk(tmp_path)
    path.write_bytes(b"one\ntorn")
    with disk.recording():
        claimed = OutputFile.claim(str(path), overwrite=False, resume=True, input_name="in.jsonl")
        with claimed as output:
            output.begin(len(b"one\n"))
    left = disk.after_cut(len(disk.calls), DiskModel.LOST, random.Random(0))
    assert left == {"out.jsonl": b"one\n"}


def test_rows_behind_zeros_are_computed_again(tmp_path: Path) -> None:
    lines = [b'{"index":%d,"error":null}\n' % index for index in range(3)]
    (tmp_path / "out.jsonl").write_bytes(lines[0] + bytes(20) + lines[1] + lines[2])
    finished = FinishedRows.read(str(tmp_path / "out.jsonl"))
    assert (len(finished), finished.num_bytes) == (1, len(lines[0]))
    assert finished.num_unrecorded == 2
