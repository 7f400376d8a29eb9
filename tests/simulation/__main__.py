"""Simulates jobs, one for each seed, until so many are done.

    python -m tests.simulation [--jobs N] [--seed S] [--processes P] [--output NAME]

A run that was stopped goes on where it was with the same command: the seeds that are done are in
build/simulation-S.json. The first seed that fails is printed with the command that repeats it.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.jobs import OUTPUTS, Figures, Simulation

BUILD = Path(__file__).resolve().parents[2] / "build"
SEEDS_AT_ONCE = 50
_MEMORY = Path("/dev/shm")


class FailedSeedError(AssertionError):
    """A simulated job went wrong; the message has the command that repeats it."""


def simulate(seeds: Sequence[int], output: str | None = None) -> Figures:
    """Simulate the jobs of some seeds in memory; raise `FailedSeedError` for one that fails."""
    figures = Figures()
    with TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
        for seed in seeds:
            try:
                figures += Simulation(seed, Path(folder), output).run()
            except Exception as error:
                why = "".join(traceback.format_exception(error, limit=-8))
                again = f"python -m tests.simulation --seed {seed} --jobs 1"
                again += "" if output is None else f" --output {output}"
                raise FailedSeedError(f"{why}seed {seed} failed; repeat it by: {again}") from None
    return figures


def pieces(first: int, end: int) -> Iterator[range]:
    """Yield the seeds in pieces of `SEEDS_AT_ONCE`."""
    for start in range(first, end, SEEDS_AT_ONCE):
        yield range(start, min(start + SEEDS_AT_ONCE, end))


def main() -> int:
    """Simulate jobs; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first one")
    parser.add_argument("--processes", type=int, default=1, metavar="P")
    parser.add_argument("--output", choices=OUTPUTS, help="default: drawn by each seed")
    options = parser.parse_args()
    record = BUILD / f"simulation-{options.output or 'all'}-{options.seed}.json"
    BUILD.mkdir(exist_ok=True)
    figures = Figures()
    if record.exists() and options.jobs > 1:
        figures = Figures(**json.loads(record.read_text()))
    began, before = time.monotonic(), figures.jobs
    parts = list(pieces(options.seed + before, options.seed + options.jobs))
    with ProcessPoolExecutor(options.processes) as pool:
        try:
            for found in pool.map(simulate, parts, [options.output] * len(parts)):
                figures += found
                record.write_text(json.dumps(asdict(figures)))
                rate = (figures.jobs - before) / (time.monotonic() - began)
                print(f"\r{figures.jobs:,} of {options.jobs:,} jobs, {rate:.1f} a second", end="")
        except FailedSeedError as error:
            print(f"\n{error}")
            pool.shutdown(cancel_futures=True)
            return 1
    counts = ", ".join(f"{count:,} {name}" for name, count in asdict(figures).items())
    print(f"\nnothing was lost: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
