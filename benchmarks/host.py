"""Compares the host's work per step with that of another checkout, in turns.

    git worktree add ../before COMMIT
    python benchmarks/host.py ../before --seats 128,1024,4096 --turns 3

Each turn runs `pagedrun bench host` in a process of its own, with kernels that compute nothing;
with `--as-gpu` in the steps of a GPU. Printed are medians over the turns, and the median of the
turns' ratios, above 1 where this checkout is faster. `cpu_s` is the processor time of the process,
start included; unlike wall time it does not contain what other processes take.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
# Scale of the figures of `bench host` that are printed.
FIGURES = {"tokens_per_s": 1.0, "decode_s_per_row": 1e6, "admission_step_s": 1e3, "step_s": 1e3}
NAMES = {
    "decode_s_per_row": "decode_us_per_row",
    "admission_step_s": "admission_step_ms",
    "step_s": "step_ms",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--seats", default="1024")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--as-gpu", action="store_true", help="compare the steps of a GPU")
    given = parser.parse_args()
    flags = ("--rows-per-seat", "4", "--as-gpu") if given.as_gpu else ()
    for seats in given.seats.split(","):
        turns = [
            [measure(root, "--seats", seats, *flags) for root in (given.before, ROOT)]
            for _ in range(given.turns)
        ]
        for name in turns[0][1]:
            pairs = [(first[name], last[name]) for first, last in turns]
            before, after = (median(side) for side in zip(*pairs, strict=True))
            faster = name.startswith("tokens_per")
            ratios = [b / a if faster else a / b for a, b in pairs if a and b]
            gain = f"{median(ratios):.2f}x" if ratios else ""
            print(f"{seats:>5} seats  {name:18} {before:12,.2f} {after:12,.2f}  {gain}")


def measure(root: Path, *flags: str) -> dict[str, float]:
    """Return the figures of one run of `bench host` in a checkout."""
    command = (sys.executable, "-m", "pagedrun", "bench", "host", *flags, "--json", "--quiet")
    env = os.environ | {"PYTHONPATH": str(root.resolve() / "src")}
    before = cpu_seconds()
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    [point] = json.loads(done.stdout)["points"]
    spreads = {name: point[name] for name in FIGURES if point[name] is not None}
    figures = {
        NAMES.get(name, name): spread["median"] * FIGURES[name] for name, spread in spreads.items()
    }
    counts = {f"{name}_per_step": count / point["steps"] for name, count in point["asked"].items()}
    return {**figures, "cpu_s": cpu_seconds() - before, "steps": point["steps"], **counts}


def cpu_seconds() -> float:
    """Return the processor time of all processes that were run and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
