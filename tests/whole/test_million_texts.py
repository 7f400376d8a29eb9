"""Vectors of many texts, killed again and again: each row once, the same bytes, flat memory."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_encoders import NUM_WORDS, write_model
from tests.whole.command_server import CommandServer

LIMIT_MIB = 1200
ROW_BYTES = 80  # of the journal, at least
# Code of a process that is killed within a write, when so many bytes of its journal are written.
DYING = """
import os, signal
from pagedrun.paged.job.output.output_file import OutputFile
write, left = OutputFile._write, {num_bytes}
def dying(self, data):
    global left
    left -= len(data)
    if left < 0:
        write(self, data[:left])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, data)
OutputFile._write = dying
"""
# Code of a process that writes down at its end the most that it held in memory, in KiB.
MEASURED = """
import os, resource
end = os._exit
def ended(status):
    with open("peak.txt", "w") as file:
        file.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    end(status)
os._exit = ended
"""
TINY: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


def write_rows(path: Path, num_rows: int) -> None:
    with path.open("w") as file:
        for index in range(num_rows):
            rest, last = divmod(index, NUM_WORDS)
            first, second = divmod(rest, NUM_WORDS)
            text = f"w{last} w{second} w{first % NUM_WORDS} w{index % 7}"
            file.write(json.dumps({"id": f"r{index}", "text": text, "n": index % 7}) + "\n")


def arguments(name: str, *flags: str) -> list[str]:
    job = ["embed", "rows.jsonl", "-o", name, "--model", "model", "--dtype", "float32"]
    return [*job, "--progress", "none", "--quiet", *flags]


def run(server: CommandServer, folder: Path, name: str, *flags: str) -> float:
    """Run the job to its end; return the most that it held, in MiB."""
    status, told = server.run(arguments(name, *flags), folder, before=MEASURED)
    assert status == 0, told
    return int((folder / "peak.txt").read_text()) / 1024


def kill_again_and_again(
    ending: str, num_rows: int, num_kills: int, server: CommandServer, folder: Path
) -> tuple[float, float]:
    """Run a job undisturbed and killed; return the most that each held at its end, in MiB."""
    write_model(folder / "model", "bert", num_attention_heads=1, **TINY)
    write_rows(folder / "rows.jsonl", num_rows)
    whole, name = f"whole.{ending}", f"killed.{ending}"
    peak = run(server, folder, whole)
    rng, journal = random.Random(num_kills), folder / f"{name}.journal.jsonl"
    num_before = 0
    for _ in range(num_kills):
        growth = int(rng.uniform(0.1, 1.0) * num_rows * ROW_BYTES / num_kills)
        dying = DYING.format(num_bytes=growth)
        status, told = server.run(arguments(name, "--resume"), folder, before=dying)
        assert status == -signal.SIGKILL, told
        lines = journal.read_bytes().split(b"\n")[:-1]  # the last one may be cut
        indices = [json.loads(line)["index"] for line in lines]
        assert num_before < len(set(indices)) == len(indices) < num_rows
        num_before = len(indices)
    resumed_peak = run(server, folder, name, "--resume")
    assert (folder / name).read_bytes() == (folder / whole).read_bytes()
    assert not journal.exists()
    if ending == "npy":
        vectors = np.load(folder / name, mmap_mode="r")
        assert vectors.shape == (num_rows, 16)
        assert np.abs(vectors).sum(axis=1).min() > 0, "each row is there"
    print(f"{num_rows:,} rows to .{ending}: at most {peak:.0f} MiB, resumed {resumed_peak:.0f} MiB")
    return peak, resumed_peak


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_killed_twice(ending: str, server: CommandServer, tmp_path: Path) -> None:
    kill_again_and_again(ending, 2_000, 2, server, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(12_000)
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_million_texts_killed_ten_times(
    ending: str, server: CommandServer, tmp_path: Path
) -> None:
    peaks = kill_again_and_again(ending, 1_000_000, 10, server, tmp_path)
    assert max(peaks) < LIMIT_MIB
