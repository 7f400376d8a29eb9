"""A busy neighbour costs its share of the CPUs, and no more: no thread of ours waits by spinning.

Beside a process that keeps every CPU busy, a fair share is half of them, so a run takes twice as
long. Where two OpenMP pools spin against each other it takes dozens of times as long, even alone.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.recipes import demo

NUM_COPIES = 6  # of 336 rows
NUM_PAIRS = 3
MAX_RATIO = 3.0
# SHA-256 of a large buffer computes without Python's lock, so these threads are busy at once.
BUSY = """
import hashlib, sys, threading
def loop():
    data = bytes(1 << 20)
    while True:
        hashlib.sha256(data)
for _ in range(int(sys.argv[1])):
    threading.Thread(target=loop).start()
print("busy", flush=True)
"""
# `run_s` in the report is the time of the rows alone, without imports and compiling.
FROM_PYTHON = """
import json, sys
from pagedrun import LLM, SamplingParams
rows = [json.loads(line) for line in open(sys.argv[1])]
llm = LLM(model=sys.argv[2])
llm.generate([rows[0]["messages"]], SamplingParams(max_tokens=2))
params = [SamplingParams(max_tokens=row["max_tokens"]) for row in rows]
llm.generate([row["messages"] for row in rows], params)
json.dump(llm.report, open(sys.argv[3], "w"))
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 2,000 rows: the demo's, several times under other ids.

    Each time with another `max_tokens`, as rows that ask the same are computed once.
    """
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    questions = [json.loads(line) for line in demo.demo_prompts_path().read_text().splitlines()]
    with path.open("w") as file:
        for copy in range(NUM_COPIES):
            for question in questions:
                own = {"id": f"{question['id']}-{copy}", "max_tokens": 256 - copy}
                file.write(json.dumps({**question, **own}) + "\n")
    return path


def run_command(rows: Path) -> dict[str, Any]:
    output = rows.with_name("out.jsonl")
    arguments = ["generate", str(rows), "-o", str(output), "--overwrite", "--quiet"]
    python("-m", "pagedrun", *arguments)
    return load(Path(f"{output}.report.json"))


def run_from_python(rows: Path) -> dict[str, Any]:
    report = rows.with_name("report.json")
    python("-c", FROM_PYTHON, str(rows), str(demo.demo_model_folder()), str(report))
    return load(report)


def python(*arguments: str) -> None:
    # As a user's shell has it: what this test's own run set must not hide a variable we forget.
    ours = ("OMP_", "NUMBA_", "GOMP_", "KMP_", "MKL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    subprocess.run([sys.executable, *arguments], env=environment, check=True, timeout=240)


def load(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    return report


@contextmanager
def neighbour() -> Iterator[None]:
    """Keep as many CPUs busy as a run may use, in a process of its own."""
    arguments = [sys.executable, "-c", BUSY, str(cpu_quota())]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "busy\n"
            yield
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", [run_command, run_from_python])
def test_a_neighbour_costs_its_share(run: Any, rows: Path, record_property: Any) -> None:
    report = run(rows)  # compiles the kernels where that was not done yet
    assert report["prefix"]["duplicate_rows"] == 0
    alone, beside = [], []
    for _ in range(NUM_PAIRS):
        alone.append(run(rows)["time"]["run_s"])
        with neighbour():
            beside.append(run(rows)["time"]["run_s"])
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"{run.__name__}: alone {alone} s, beside {beside} s, ratio {ratio:.2f}")
    record_property("ratio", ratio)
    assert ratio <= MAX_RATIO, (alone, beside)
