"""What is left of a cluster is ended, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

from pagedrun.paged.replicas.cluster_reaper import processes_of, reap

SLEEP = "import sys, time; print(1, flush=True); time.sleep(600)"


def started(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a process that has a file of the folder open."""
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [*arguments], stdout=subprocess.PIPE, stderr=log, executable=sys.executable
        )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_processes_of_ray_that_have_the_folder_are_ended_but_neither_driver_nor_others(
    tmp_path: Path,
) -> None:
    folder, elsewhere = tmp_path / "ours", tmp_path / "theirs"
    folder.mkdir()
    elsewhere.mkdir()
    agent = started(folder, "ray::Agent", "-c", SLEEP)
    other = started(elsewhere, "ray::Agent", "-c", SLEEP)
    driver = started(folder, "ray::Driver", "-c", SLEEP)
    user = started(folder, "python", "-c", f"{SLEEP}  # of a folder named ray")
    try:
        assert set(processes_of(str(folder), driver.pid)) == {agent.pid}
        assert os.getpid() not in set(processes_of(str(folder), 0))
        reap(str(folder), driver.pid)
        assert agent.wait(60) != 0
        assert not folder.exists()
        assert [each.poll() for each in (other, driver, user)] == [None] * 3
    finally:
        for each in (agent, other, driver, user):
            each.kill()
            each.communicate()
