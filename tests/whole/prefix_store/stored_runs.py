"""Runs with a prefix store, and what came of them."""

import random
from pathlib import Path
from typing import Any

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.interfaces import ModelOpener
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.metrics.report_sections import JobReport
from pagedrun.paged.values.engine_config import EngineConfig, WindowSize
from tests.support.comparable import comparable_rows
from tests.support.jsonl import write_jsonl

PREFIX_TOKENS = 2003  # ends inside a block
WHOLE = WindowSize()  # larger than any of the inputs


class Listener(JobListener):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


class Ran:
    """A finished run: its answers without `cached_tokens`, its report, what it warned of."""

    def __init__(self, output: Path, report: JobReport, warnings: list[str]) -> None:
        self.answers = comparable_rows(output)
        self.report = report
        self.store: Any = report.get("prefix_store", {})
        self.warnings = warnings


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(20, 256) for _ in range(count)]


def write_rows(path: Path, prompts: list[list[int]], **params: Any) -> Path:
    rows = ({"prompt_token_ids": prompt, "max_tokens": 6, **params} for prompt in prompts)
    return write_jsonl(path, rows)


def run(
    rows: Path,
    model: Path,
    store: Path | None,
    opener: ModelOpener = LocalModel,
    *,
    window: WindowSize = WHOLE,
    **engine: Any,
) -> Ran:
    output = rows.with_suffix(".out.jsonl")
    listener = Listener()
    config = JobConfig(
        input=str(rows),
        output=str(output),
        engine=EngineConfig(model=model, prefix_store=store, **{"dtype": "float32", **engine}),
        ordered=True,
        overwrite=True,
        window=window,
    )
    result = run_job(config, listener, opener)
    return Ran(output, result.report, listener.warnings)
