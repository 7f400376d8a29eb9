"""Tests spread over processes by file, without a plugin: a file that hangs or dies loses itself.

    python benchmarks/on_gpu/spread_tests.py --marked gpu --processes 6 tests

Prints counts and failures as JSON; exit status 1 if there are failures.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.on_gpu.parts import PYTEST, ROOT, Step, run_step

NO_TESTS = 5  # pytest's exit status where nothing was collected
SECONDS_OF_A_FILE = 300.0


def main() -> int:
    """Run the tests; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", help="files and folders of tests")
    parser.add_argument("--marked", default="gpu", help="as pytest's -m")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--without", action="append", default=[], metavar="FILE")
    parser.add_argument("--seconds", type=float, default=SECONDS_OF_A_FILE, help="of one file")
    given = parser.parse_args()
    files = [each for each in collect(given.paths, given.marked) if each not in given.without]
    total: dict[str, Any] = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0}
    failures: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    with ThreadPoolExecutor(given.processes) as pool:
        running = {pool.submit(run_file, name, given.marked, given.seconds): name for name in files}
        for done in as_completed(running):
            name, outcome = running[done], done.result()
            seconds[name] = outcome["seconds"]
            tests = outcome.get("tests", {"failures": []})
            for key in total:
                total[key] += tests.get(key, 0)
            failures += tests["failures"]
            if "failed" in outcome and not tests["failures"]:
                failures.append({"name": name, "said": [outcome["failed"], *outcome["said"]]})
            told = outcome.get("failed", "done")
            print(f"{name}: {told}, {outcome['seconds']} s", file=sys.stderr, flush=True)
    print(json.dumps({**total, "files": seconds, "failures": failures}))
    return 1 if failures else 0


def collect(paths: Seq[str], marked: str) -> list[str]:
    """Return the files that have tests which are marked so."""
    command = [sys.executable, "-m", "pytest", "-m", marked, "--collect-only", "-q"]
    done = subprocess.run(
        [*command, *shlex.split(PYTEST), *paths], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode not in (0, NO_TESTS):
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    names = [line.split("::")[0] for line in done.stdout.splitlines() if "::" in line]
    return [each for each in dict.fromkeys(names) if Path(ROOT / each).is_file()]


def run_file(name: str, marked: str, seconds: float) -> dict[str, Any]:
    """Return what came of the tests of a file."""
    step = Step(name, f"-m {shlex.quote(marked)} -q {name}", "pytest")
    return run_step(step, seconds, lambda line: None)


if __name__ == "__main__":
    sys.exit(main())
