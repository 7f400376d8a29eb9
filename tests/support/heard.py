"""Heard: a listener that keeps what a job told, and what the job wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.progress import JobListener, Phase, Tally
from pagedrun.paged.metrics.timeline import StepRecord
from tests.support.scripted_model import Answer, ScriptedModel, config_for, echo


class Heard(JobListener):
    """Keeps what the job told."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.warnings: list[str] = []
        self.rows: list[tuple[int, int]] = []
        self.steps = 0

    def on_phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def on_step(self, record: StepRecord) -> None:
        self.steps += 1

    def on_tally(self, tally: Tally) -> None:
        self.rows.append((tally.ok, tally.failed))

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def run(
    place: Path, rows: Sequence[Any], answer: Answer = echo, **changes: Any
) -> tuple[JobResult, list[dict[str, Any]]]:
    result = run_job(config_for(place, rows, **changes), None, ScriptedModel(answer).open())
    return result, output_rows(place)


def output_rows(place: Path) -> list[dict[str, Any]]:
    data = (place / "out.jsonl").read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def side_file(place: Path, suffix: str) -> Any:
    return json.loads((place / f"out.jsonl{suffix}").read_text(encoding="utf-8"))
