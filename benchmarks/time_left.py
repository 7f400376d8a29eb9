"""Accuracy of the time estimates of a plan and of the live display.

    python benchmarks/time_left.py --scale 1

Answers eight files with the bundled model, looks five times a second at the guess and the interval
that the live display shows, and compares with the truth when the run is over. Printed are, for each
file, how long it ran, at what share of those moments the truth lay within, how far off the guess
was at the median moment (as a share of the time left), what was said halfway, and what the plan
said before. A short run first leaves what plans are made of. Exit status 1 if fewer than seven of
eight held, while they ran for nine in ten moments, or when they were planned.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

from pagedrun.kernels.environment.threads import prepare_environment

prepare_environment()  # before the next lines import torch

from pagedrun.cli.progress.run_figures import ProgressFiguresListener, TimeLeft
from pagedrun.cli.terminal.units import show_span
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.planned.timed_run import save_timings
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path

Rows = list[dict[str, Any]]
LOOK_S = 0.2
HELD_SHARE = 0.9
WANTED = 7
FULL_LENGTH = SamplingParams(max_tokens=64, ignore_eos=True)


@dataclass(frozen=True)
class Workload:
    """Rows, and the settings of their run."""

    name: str
    rows: Callable[[random.Random, int], Rows]
    sampling: SamplingParams = FULL_LENGTH
    max_num_seqs: int = 128


def ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(300) for _ in range(count)]


def prompts(length: int, max_tokens: Callable[[random.Random], int], count: int) -> Any:
    def rows(draw: random.Random, scale: int) -> Rows:
        return [
            {"prompt_token_ids": ids(draw, length), "max_tokens": max_tokens(draw)}
            for _ in range(count * scale)
        ]

    return rows


def bundled(draw: random.Random, scale: int) -> Rows:
    """Ask the bundled questions, each several times over with a number of its own."""
    rows = [json.loads(line) for line in demo_prompts_path().read_text().splitlines()]
    asked: Rows = []
    for turn in range(4 * scale):
        for row in rows:
            *before, last = row["messages"]
            text = f"{last['content']} ({turn})"
            asked.append({"messages": [*before, {**last, "content": text}]})
    return asked


def sampled(draw: random.Random, scale: int) -> Rows:
    return [{"prompt_token_ids": ids(draw, 32), "n": 4, "seed": i} for i in range(400 * scale)]


WORKLOADS = (
    Workload("bundled prompts", bundled, SamplingParams(max_tokens=200)),
    Workload("one token each", prompts(200, lambda draw: 1, 2000)),
    Workload("equal answers", prompts(40, lambda draw: 64, 1500)),
    Workload("any length", prompts(40, lambda draw: draw.randrange(1, 200), 1000)),
    Workload("a few long ones", prompts(40, lambda draw: 300 if draw.random() < 0.1 else 16, 1500)),
    Workload("long prompts", prompts(400, lambda draw: draw.randrange(8, 24), 500)),
    Workload("small batch", prompts(40, lambda draw: draw.randrange(8, 64), 150), max_num_seqs=8),
    Workload("samples", sampled, SamplingParams(max_tokens=64, temperature=1.0)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=int, default=1, help="how many times as many rows")
    scale = parser.parse_args().scale
    num_held = num_planned = 0
    watched(WORKLOADS[0], 1)
    head = f"{'':18} {'ran':>8} {'held':>6} {'off':>5}  {'halfway it said':18} {'in all':>8}"
    print(f"{head}  the plan said")
    for workload in WORKLOADS:
        run = watched(workload, scale)
        num_held += run.share_held >= HELD_SHARE
        num_planned += run.is_as_planned
        planned = f"{show_span(*run.planned)}{'' if run.is_as_planned else ' !'}"
        print(
            f"{workload.name:18} {run.run_s:6.1f} s {run.share_held:6.1%} {run.error:5.0%}  "
            f"{run.halfway:18} {run.total_s:6.1f} s  {planned}",
            flush=True,
        )
    print(f"{num_held} of {len(WORKLOADS)} held, {num_planned} were as planned")
    sys.exit(min(num_held, num_planned) < WANTED)


@dataclass(frozen=True)
class Watched:
    """A run: the estimates shown during it, its planned time and its real one."""

    looks: list[tuple[float, TimeLeft]]
    run_s: float
    planned: tuple[float, float]
    total_s: float

    @property
    def share_held(self) -> float:
        inside = [left.low_s <= self.run_s - at <= left.high_s for at, left in self.looks]
        return sum(inside) / max(len(inside), 1)

    @property
    def error(self) -> float:
        """Median distance of the guess from the time left, as a share of that."""
        off = (
            abs(left.guess_s - (self.run_s - at)) / (self.run_s - at)
            for at, left in self.looks
            if at < self.run_s
        )
        return median(off) if self.looks else 0.0

    @property
    def halfway(self) -> str:
        if not self.looks:
            return "nothing"
        _, left = min(self.looks, key=lambda look: abs(look[0] - self.run_s / 2))
        return show_span(left.low_s, left.high_s)

    @property
    def is_as_planned(self) -> bool:
        low, high = self.planned
        return low <= self.total_s <= high


def watched(workload: Workload, scale: int) -> Watched:
    """Plan and run a workload."""
    watch = ProgressFiguresListener(lambda message: None)
    with TemporaryDirectory() as folder:
        source = Path(folder) / "rows.jsonl"
        rows = workload.rows(random.Random(1), scale)
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        job = JobConfig(
            input=str(source),
            output=str(Path(folder) / "out.jsonl"),
            engine=EngineConfig(model=demo_model_folder(), max_num_seqs=workload.max_num_seqs),
            sampling=workload.sampling,
        )
        planned = plan_file(job, JobListener())["run_time"]
        began = time.monotonic()
        looks = looking(watch, lambda: run_job(job, watch))
        total_s = time.monotonic() - began
        report = json.loads(Path(f"{job.output}.report.json").read_text())
    save_timings(job.engine, report)
    low, high = (planned["low_s"], planned["high_s"]) if planned is not None else (0.0, 0.0)
    return Watched(looks, report["time"]["run_s"], (low, high), total_s)


def looking(
    watch: ProgressFiguresListener, run: Callable[[], object]
) -> list[tuple[float, TimeLeft]]:
    """Run, and return the estimates shown, with the seconds since the run began."""
    said: list[tuple[float, TimeLeft]] = []
    ended = Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            figures = watch.figures()
            if figures.time_left is not None:
                said.append((time.monotonic() - watch.run_began, figures.time_left))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        run()
    finally:
        ended.set()
        thread.join()
    return said


if __name__ == "__main__":
    main()
