"""Does a run pause where one window of its input ends and the next begins?

    git worktree add ../first e9beff8
    python benchmarks/windows.py ../first --rows 20000 --windows 5 --turns 3

Answers the same rows with the bundled model, here and by the first edition (commit e9beff8), in
turns, each in a process of its own. The file is cut into so many windows, far smaller ones than
`generate` would make. Printed are the median time from one step to the next, the longest such time
in which a window was taken, and what the whole run took.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "recipes" / "demo"
FIGURES = {"step_ms": "median step", "border_ms": "longest step at a border", "run_s": "whole run"}
MAX_TOKENS = 16
_WORDS = ("red", "green", "blue", "cold", "warm", "small", "large", "early", "late", "near", "far")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path, help="a checkout of e9beff8")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seats", type=int, default=256, help="rows that run at once")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, -(-given.rows // given.windows), given.seats)))
        return
    with TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        write_rows(prompts, given.rows)
        turns = [
            (in_process(given.first, prompts), in_process(ROOT, prompts))
            for _ in range(given.turns)
        ]
    print(f"{'':29} {'first':>10} {'now':>10}")
    for name, what in FIGURES.items():
        before, after = (median(turn[side][name] for turn in turns) for side in (0, 1))
        print(f"{what:26} {name.rpartition('_')[2]:>2} {before:10,.2f} {after:10,.2f}")


def write_rows(path: Path, count: int) -> None:
    """Write rows with a system prompt each of 50, and words of their own."""
    pick = random.Random(0)
    systems = [" ".join(pick.choices(_WORDS, k=40)) for _ in range(50)]
    with path.open("w") as file:
        for index in range(count):
            prompt = f"{pick.choice(systems)}\n{index} {' '.join(pick.choices(_WORDS, k=8))}"
            file.write(json.dumps({"id": str(index), "prompt": prompt}) + "\n")


def in_process(root: Path, prompts: Path) -> dict[str, float]:
    """Measure the edition in the checkout `root`; return its figures."""
    command = (sys.executable, __file__, *sys.argv[1:], "--measure", str(prompts))
    env = os.environ | {"PYTHONPATH": str(root.resolve() / "src")}
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(prompts: Path, window_rows: int, seats: int) -> dict[str, float]:
    """Run the job; return its figures."""
    first_of("prepare_environment", "kernels.environment.threads", "kernels.threads")()
    cut: dict[str, Any] = {}
    try:
        size = import_module("pagedrun.paged.values.window_size").WindowSize
        cut = {"window": size(rows=window_rows)}
    except ImportError:  # the first edition's is a constant
        import_module("pagedrun.paged.job.windows").WINDOW_ROWS = window_rows  # type: ignore[attr-defined]
    job = import_module("pagedrun.paged.job.job")
    log: list[tuple[float, int]] = []

    class Listener(job.SilentListener):  # type: ignore[misc, name-defined]
        def on_step(self, record: Any) -> None:
            log.append((time.perf_counter(), record.total))

    engine = first_of("EngineConfig", "paged.values.engine_config", "paged.engine_config")
    sampling = first_of("SamplingParams", "paged.values.sampling.sampling_params", "paged.sampling")
    config = first_of("JobConfig", "paged.job.config")(
        input=str(prompts),
        output=str(prompts.with_name("answers.jsonl")),
        overwrite=True,
        engine=engine(model=MODEL, max_num_seqs=seats),
        sampling=sampling(max_tokens=MAX_TOKENS, ignore_eos=True),
        **cut,
    )
    began = time.perf_counter()
    job.run_job(config, Listener())
    run_s = time.perf_counter() - began
    gaps = [(now - before, total > last) for (before, last), (now, total) in pairwise(log)]
    return {
        "step_ms": 1e3 * median(gap for gap, _ in gaps),
        "border_ms": 1e3 * max(gap for gap, takes_window in gaps if takes_window),
        "run_s": run_s,
    }


def first_of(name: str, *modules: str) -> Any:
    """Return what is called `name` in the first of these modules that this edition has."""
    for module in modules:
        with suppress(ModuleNotFoundError):
            return getattr(import_module(f"pagedrun.{module}"), name)
    raise SystemExit(f"no {name}: is this a checkout of e9beff8?")


if __name__ == "__main__":
    main()
