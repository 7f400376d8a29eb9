"""A driver that is ended, in whichever way, leaves no process, whole lines, and a job to resume."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagedrun.paged.values.engine_config import WindowSize
from tests.replicas.demo_job import demo_job, write_rows
from tests.replicas.processes import command_line, descendants, is_running
from tests.support.comparable import comparable_bytes
from tests.support.jsonl import read_jsonl

SECONDS = 300.0  # for a driver to come to its first rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drivers")
    write_rows(folder / "rows.jsonl")
    return folder


@pytest.fixture(scope="module")
def wanted(rows: Path) -> bytes:
    return demo_job(rows, "one.jsonl", None, window=WindowSize())[1]  # as the command has it


def command(rows: Path, output: str) -> list[str]:
    flags = ["--max-tokens", "12", "--temperature", "1", "--num-blocks", "600", "--ordered"]
    flags += ["--max-num-seqs", "8", "--replicas", "2", "--cpus-per-replica", "1", "--quiet"]
    files = [str(rows / "rows.jsonl"), "-o", str(rows / output)]
    return [sys.executable, "-m", "pagedrun", "generate", *files, "--model", "demo", *flags]


def begun(rows: Path, output: str) -> tuple["subprocess.Popen[bytes]", list[int]]:
    """Start the command, and wait until it has written rows; return it and all its processes."""
    process = subprocess.Popen(command(rows, output), start_new_session=True)
    until = time.monotonic() + SECONDS
    path = rows / output
    while not (path.exists() and path.read_bytes().count(b"\n") > 20):
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < until, "no row came"
        time.sleep(0.02)
    return process, list(descendants(process.pid))


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_ended_driver_leaves_no_process_and_the_rest_is_done_by_resume(
    rows: Path, wanted: bytes, signum: signal.Signals
) -> None:
    output = f"{signum.name}.jsonl"
    process, pids = begun(rows, output)
    os.kill(process.pid, signum)
    status = process.wait(60)
    assert status == (-signum if signum == signal.SIGKILL else 128 + signum)
    until = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [command_line(pid) for pid in pids if is_running(pid)]
    done = (rows / output).read_bytes()
    if signum != signal.SIGKILL:
        assert done.endswith(b"\n")
    assert len(read_jsonl(rows / output)) < wanted.count(b"\n")
    resumed = subprocess.run([*command(rows, output), "--resume"], timeout=SECONDS, check=False)
    assert resumed.returncode == 3  # some rows cannot be asked
    assert comparable_bytes(rows / output) == wanted
