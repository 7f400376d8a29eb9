"""What the driver of a job with replicas holds in memory, over a million rows.

Reader, planner, queue, writer and manifest are the real ones; the replicas are threads that answer
from a script, in this process.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.model import ReplicatedModel
from pagedrun.paged.job.progress import JobListener, Tally
from pagedrun.paged.planning.planner import RequestLimits
from pagedrun.paged.replicas.replica_engine import ReplicaEngine
from pagedrun.paged.replicas.replica_set import ReplicaSet
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig, WindowSize
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.replicas.thread_pool import BASIS, ScriptedEngine, ThreadPool

GROUP = 500  # rows with a common prefix
EVERY = 100_000
BYTES_A_ROW = 128  # ids take 32 of them, see UniqueIds


class ThreadedModel(ReplicatedModel):
    """Has replicas that are threads."""

    def load_engine(self) -> ReplicaEngine:
        limits = RequestLimits(self.config.max_position_embeddings, self.config.vocab_size)
        rules = replace(BASIS.rules, max_blocks=4096, block_size=16)
        basis = replace(BASIS, limits=limits, rules=rules)
        pool = ThreadPool(4, lambda number: ScriptedEngine(number, basis=basis))
        return ReplicaEngine(self.settings, ReplicaSet(pool, 0.0))


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line) / 1024


class Resident(JobListener):
    """Notes what is resident when the first row is written, and after each `EVERY`."""

    def __init__(self) -> None:
        self.mib: dict[int, float] = {}

    def on_tally(self, tally: Tally) -> None:
        if tally.num_rows == 1 or (tally.num_rows % EVERY == 0 and tally.num_rows):
            self.mib.setdefault(tally.num_rows, resident_mib())


def lines(num_rows: int) -> Iterator[str]:
    for index in range(num_rows):
        stem = f"Group {index // GROUP} of the file has a common beginning. "
        yield json.dumps({"id": f"r{index}", "prompt": f"{stem}Row {index}: yes?"}) + "\n"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("num_rows", "window"),
    [(200_000, 20_000), (1_000_000, 100_000)],
)
def test_memory_is_flat_over_a_file(tmp_path: Path, num_rows: int, window: int) -> None:
    with (tmp_path / "rows.jsonl").open("w") as file:
        file.writelines(lines(num_rows))
    watched = Resident()
    job = JobConfig(
        input=str(tmp_path / "rows.jsonl"),
        output=str(tmp_path / "out.jsonl"),
        engine=EngineConfig(model=demo_model_folder()),
        sampling=SamplingParams(max_tokens=2, temperature=1.0),
        window=WindowSize(rows=window),
        replicas=ReplicaConfig(replicas=4),
    )

    def opened(config: EngineConfig, tokenizer: Path, template: str | None) -> ThreadedModel:
        return ThreadedModel(config, tokenizer, template, job.replicas, 0.0)

    result = run_job(job, watched, opened)
    shown = ", ".join(f"{count:,}: {mib:,.0f}" for count, mib in watched.mib.items())
    print(f"\n{num_rows:,} rows in windows of {window:,}: MiB after so many rows {shown}")
    assert result.report["rows"]["ok"] == num_rows
    settled = max(EVERY, 2 * window)  # one is planned while one runs and another one ends
    grown = watched.mib[num_rows] - watched.mib[settled]
    assert grown * 2**20 / (num_rows - settled) < BYTES_A_ROW
    seen = bytearray(num_rows)
    with (tmp_path / "out.jsonl").open("rb") as found:
        for line in found:
            seen[json.loads(line)["index"]] += 1
    assert seen == bytes([1]) * num_rows
