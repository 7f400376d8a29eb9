"""Vectors of many texts, killed again and again: each row once, the same bytes, flat memory."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_encoders import NUM_WORDS, write_model

LIMIT_MIB = 1200
SECONDS = 3000  # of a run, or of waiting for rows
# Runs the command and prints its exit status and the most that it held in memory, in KiB.
WATCHED = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
TINY: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


def write_rows(path: Path, num_rows: int) -> None:
    with path.open("w") as file:
        for index in range(num_rows):
            rest, last = divmod(index, NUM_WORDS)
            first, second = divmod(rest, NUM_WORDS)
            text = f"w{last} w{second} w{first % NUM_WORDS} w{index % 7}"
            file.write(json.dumps({"id": f"r{index}", "text": text, "n": index % 7}) + "\n")


def command(name: str, *flags: str) -> list[str]:
    job = ["embed", "rows.jsonl", "-o", name, "--model", "model", "--dtype", "float32"]
    return [sys.executable, "-m", "pagedrun", *job, "--progress", "none", "--quiet", *flags]


def watched(folder: Path, name: str, *flags: str) -> float:
    """Run the job to its end; return the most that it held, in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *command(name, *flags)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    status, peak = map(int, done.stdout.split())
    assert status == 0, done.stderr[-1000:]
    return peak / 1024


def kill_after(folder: Path, name: str, num_bytes: int) -> bool:
    """Resume the job and kill it when its journal has grown so much; return whether it was."""
    journal = folder / f"{name}.journal.jsonl"
    before = journal.stat().st_size if journal.exists() else 0
    process = subprocess.Popen(command(name, "--resume"), cwd=folder)
    ends_at = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < ends_at:
        if journal.exists() and journal.stat().st_size >= before + num_bytes:
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    return process.wait(timeout=SECONDS) == -signal.SIGKILL


def kill_again_and_again(
    ending: str, num_rows: int, num_kills: int, folder: Path
) -> tuple[float, float]:
    """Run a job undisturbed and killed; return the most that each held at its end, in MiB."""
    write_model(folder / "model", "bert", num_attention_heads=1, **TINY)
    write_rows(folder / "rows.jsonl", num_rows)
    whole, name = f"whole.{ending}", f"killed.{ending}"
    peak = watched(folder, whole)
    rng, row_bytes = random.Random(num_kills), 110  # of the journal
    journal = folder / f"{name}.journal.jsonl"
    for _ in range(num_kills):
        growth = int(rng.uniform(0.1, 1.0) * num_rows * row_bytes / (num_kills + 1))
        assert kill_after(folder, name, growth)
        lines = journal.read_bytes().split(b"\n")[:-1]  # the last one may be cut
        indices = [json.loads(line)["index"] for line in lines]
        assert len(set(indices)) == len(indices) < num_rows
    resumed_peak = watched(folder, name, "--resume")
    assert (folder / name).read_bytes() == (folder / whole).read_bytes()
    assert not journal.exists()
    if ending == "npy":
        vectors = np.load(folder / name, mmap_mode="r")
        assert vectors.shape == (num_rows, 16)
        assert np.abs(vectors).sum(axis=1).min() > 0, "each row is there"
    print(f"{num_rows:,} rows to .{ending}: at most {peak:.0f} MiB, resumed {resumed_peak:.0f} MiB")
    return peak, resumed_peak


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_killed_twice(ending: str, tmp_path: Path) -> None:
    kill_again_and_again(ending, 30_000, 2, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_million_texts_killed_ten_times(ending: str, tmp_path: Path) -> None:
    peaks = kill_again_and_again(ending, 1_000_000, 10, tmp_path)
    assert max(peaks) < LIMIT_MIB
