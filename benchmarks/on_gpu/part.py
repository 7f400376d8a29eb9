"""A part in a process of its own: its steps one after the other, its file written as it goes."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.on_gpu.machine import gpu_facts
from benchmarks.on_gpu.parts import Part
from benchmarks.on_gpu.step import Outcome, run_step

# A step takes no more than so many times what falls to it by weight; the last one what is left.
SLACK = 1.6


class PartRun:
    """A run of a part, which keeps STEM-NAME.json up to date and adds to STEM-NAME.log."""

    def __init__(self, name: str, part: Part, stem: Path) -> None:
        self._name = name
        self._part = part
        self._path = part_path(stem, name)
        self._log = self._path.with_suffix(".log").open("a", encoding="utf-8")
        self._began = perf_counter()
        self._result: dict[str, Any] = {
            "part": name,
            "about": part.about,
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "limit_s": part.limit_s,
            "gpu_before": gpu_facts(),
            "steps": [],
            "running": None,
        }

    def run(self) -> bool:
        """Run all steps; return whether none failed."""
        for index, step in enumerate(self._part.steps):
            self._say(f"{step.name}: {step.shown}")

            def note(pid: str, name: str = step.name, shown: str = step.shown) -> None:
                self._result["running"] = {"name": name, "command": shown, "group": int(pid)}
                self._write()

            outcome = run_step(step, self._seconds_for(index), self._say, note)
            self._result["steps"].append(outcome)
            self._result["running"] = None
            self._say(f"{step.name}: {outcome.get('failed', 'done')}, {outcome['seconds']} s")
            self._write()
        self._result["gpu_after"] = gpu_facts()
        self._result["is_complete"] = True
        self._write()
        return not any("failed" in each for each in self._result["steps"])

    def _seconds_for(self, index: int) -> float:
        left = self._part.limit_s - (perf_counter() - self._began)
        weights = [step.weight for step in self._part.steps[index:]]
        return min(left, SLACK * left * weights[0] / sum(weights))

    def _say(self, line: str) -> None:
        text = f"{self._name} {perf_counter() - self._began:6.1f} s  {line}"
        print(text, file=self._log, flush=True)
        print(text, file=sys.stderr, flush=True)

    def _write(self) -> None:
        self._result["seconds"] = round(perf_counter() - self._began, 1)
        write_json(self._path, self._result)


def part_path(stem: Path, name: str) -> Path:
    """Return the file of a part."""
    return stem.with_name(f"{stem.name}-{name}.json")


def write_json(path: Path, value: Any) -> None:
    """Write a file whole: whoever reads it finds the old one or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def read_part(path: Path) -> dict[str, Any] | None:
    """Return what a part has written, None where there is nothing."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return result


def interrupted(result: dict[str, Any], why: str) -> dict[str, Any]:
    """Return what is left of a part whose process ended before it was done."""
    running = result.get("running")
    lost: list[Outcome] = []
    if running is not None:
        lost = [{**running, "failed": f"lost: the part {why}", "said": [], "seconds": 0.0}]
        del lost[0]["group"]
    return {**result, "steps": [*result["steps"], *lost], "running": None, "failed": why}
