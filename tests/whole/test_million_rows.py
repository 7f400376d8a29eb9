"""A file of a million rows in the memory of a small machine."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import MakeModel

NUM_ROWS = 1_000_000
LIMIT_MIB = 4096
GROWTH_MIB = 128  # while rows are answered, a hundred bytes for each
# Runs the command and prints, every second, what it holds in memory.
WATCHED = """
import resource, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
while process.poll() is None:
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        status = open(f"/proc/{process.pid}/status").read()
        print(next((l.split()[1] for l in status.splitlines() if l.startswith("VmRSS")), 0))
print(process.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_rows_in_four_gibibytes(make_model: MakeModel, tmp_path: Path) -> None:
    tiny = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 16}
    model = make_model("qwen3", "tiny", num_attention_heads=1, num_key_value_heads=1, **tiny)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for index in range(NUM_ROWS):
            row = {"id": f"r{index}", "prompt": f"Row {index}: yes or no?", "label": index % 7}
            file.write(json.dumps(row) + "\n")
    command = [sys.executable, "-m", "pagedrun", "generate", "rows.jsonl", "--model", str(model)]
    command += ["--max-tokens", "2", "--ignore-eos", "--progress", "json"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *command], cwd=tmp_path, capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    *resident, last = done.stdout.splitlines()
    status, peak = (int(figure) for figure in last.split())
    assert status == 0, done.stderr[-1000:]
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    running = [
        each["elapsed_s"] for each in events if each.get("phase") == "run" and "elapsed_s" in each
    ]
    mib = [int(figure) / 1024 for figure in resident]
    half = mib[int(running[0] + (running[-1] - running[0]) / 2) :]
    print(
        f"{NUM_ROWS:,} rows in {seconds:.0f} s; at most {peak / 1024:.0f} MiB; over the second "
        f"half of the run {min(half[:10]):.0f} to {max(half):.0f} MiB"
    )
    assert peak / 1024 < LIMIT_MIB
    assert max(half) - min(half[:10]) < GROWTH_MIB
    seen = bytearray(NUM_ROWS)
    with (tmp_path / "rows.out.jsonl").open("rb") as file:
        for line in file:
            seen[json.loads(line)["index"]] += 1
    assert seen == bytes([1]) * NUM_ROWS
