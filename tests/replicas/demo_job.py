"""Jobs on the bundled model, whose bytes change in bfloat16 with what is read together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.progress import AnswerPreview, JobListener
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig, WindowSize
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path
from tests.support.comparable import comparable_bytes


class Watcher(JobListener):
    """Calls `on_nth` when the n-th answer is written, and keeps the warnings."""

    def __init__(self, nth: int = 0, on_nth: Callable[[], None] = lambda: None) -> None:
        self.warnings: list[str] = []
        self._left = nth
        self._on_nth = on_nth

    def on_answer(self, answer: AnswerPreview) -> None:
        self._left -= 1
        if self._left == 0:
            self._on_nth()

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def write_rows(path: Path, times: int = 1) -> None:
    """Write the bundled prompts, with samples, votes of the same, repeated rows and bad ones."""
    lines = demo_prompts_path().read_text(encoding="utf-8").splitlines()
    rows: list[str] = ["not JSON"]
    for place, line in enumerate(lines * times):
        row: dict[str, Any] = json.loads(line)
        if times > 1:
            row |= {"id": place, "seed": place}
        if place % 5 == 0:
            row["n"] = 3
        if place % 3 == 0:
            row["temperature"] = 0.0
        if place % 7 == 0:
            row["logprobs"] = 1
        rows.append(json.dumps(row))
        if place % 30 == 0:
            row["id"] = f"again-{place}"
            rows.append(json.dumps(row))
    path.write_text("\n".join(rows), encoding="utf-8")


def demo_job(
    folder: Path,
    output: str,
    num_replicas: int | None,
    watcher: Watcher | None = None,
    **changes: Any,
) -> tuple[JobResult, bytes]:
    """Answer the rows in `folder`; return the result, and the output but for what may differ."""
    settings: dict[str, Any] = {
        "input": str(folder / "rows.jsonl"),
        "output": str(folder / output),
        "engine": EngineConfig(model=demo_model_folder(), num_blocks=600, max_num_seqs=32),
        "sampling": SamplingParams(max_tokens=12, temperature=1.0),
        "window": WindowSize(rows=200),
        "ordered": True,
        "replicas": ReplicaConfig(
            replicas=num_replicas, cpus_per_replica=None if num_replicas is None else 1
        ),
    }
    result = run_job(JobConfig(**{**settings, **changes}), watcher)
    return result, comparable_bytes(folder / output)
