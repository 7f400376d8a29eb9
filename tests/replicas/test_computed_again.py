"""What replicas compute of prompts is what `plan --replicas N` said before, and nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.planning.planner import PartPlanner
from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.replicas.ray_pool import RayPool
from pagedrun.paged.replicas.unit_queue import UnitQueue
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder, demo_prompts_path


class Watched:
    """Notes which replica was given which units, in which order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: dict[int, list[PlanPart]] = {}
        feed = RayPool.feed

        def noted(pool: RayPool, replica: int, number: int, part: PlanPart) -> None:
            self.parts.setdefault(replica, []).append(part)
            feed(pool, replica, number, part)

        monkeypatch.setattr(RayPool, "feed", noted)
        # Rows that are run twice, because others were idle, are computed twice.
        monkeypatch.setattr(UnitQueue, "_copied", lambda *arguments: None)

    def computed(self, replica: int) -> "Bounds":
        """Return the prompt tokens that a replica has to compute."""
        return Bounds.of(self.parts.get(replica, []))

    def computed_by_one(self) -> "Bounds":
        """Return those that one replica with all units has to compute."""
        parts = (part for parts in self.parts.values() for part in parts)
        return Bounds.of(sorted(parts, key=lambda part: int(part.places[0])))


class Bounds(NamedTuple):
    """Tokens to compute if what rows have in common in a block that is not full is always copied,
    and if it never is."""

    least: int
    most: int

    @classmethod
    def of(cls, parts: list[PlanPart]) -> "Bounds":
        planner, least, most = PartPlanner(), 0, 0
        for part in parts:
            plan = planner.window(part).plan
            common = np.minimum(plan.num_common_tokens, plan.num_tokens - 1)
            least += int((plan.num_tokens - common).sum())
            most += int((plan.num_tokens - plan.num_hit_tokens).sum())
        return cls(least, most)


@pytest.mark.long
@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("num_samples", [1, 4])
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_replicas_compute_what_was_planned(
    cluster: RayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_replicas: int,
    num_samples: int,
    has_store: bool,
) -> None:
    store: dict[str, Any] = {"prefix_store": tmp_path / "store"} if has_store else {}
    job = JobConfig(
        input=str(demo_prompts_path()),
        output=str(tmp_path / "out.jsonl"),
        engine=EngineConfig(model=demo_model_folder(), num_blocks=6000, max_num_seqs=64, **store),
        sampling=SamplingParams(
            max_tokens=8, n=num_samples, temperature=0.0 if num_samples == 1 else 1.0
        ),
        replicas=ReplicaConfig(replicas=num_replicas, cpus_per_replica=1),
    )
    forecast = plan_file(job, JobListener(), num_replicas=num_replicas)
    said = forecast["replicas"]
    distinct, again = forecast["tokens"]["computed"], said["split_prefix_tokens"]
    watched = Watched(monkeypatch)
    figures = run_job(job).report["replicas"]
    wanted = [watched.computed(each["number"]) for each in figures]
    for each, bounds in zip(figures, wanted, strict=True):
        assert each["computed_tokens"] <= bounds.most
        assert has_store or each["computed_tokens"] >= bounds.least
    one, found = watched.computed_by_one(), sum(each["computed_tokens"] for each in figures)
    together = sum(bounds.most for bounds in wanted)
    print(
        f"{num_replicas} replicas, n = {num_samples}: planned {distinct} + {again}; by units "
        f"{one} in one, {together} at most in all; computed {found}"
    )
    assert one.least <= distinct <= one.most
    assert one.most <= together <= one.most + again
    assert again == 0 or num_replicas > 1
    assert said["computed_at_most"] == one.most + again >= found
    if not has_store:
        return
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    assert report["prefix_store"]["stored_tokens"] > 0
    second = replace(job, output=str(tmp_path / "again.jsonl"))
    loaded = run_job(second).report
    assert loaded["prefix_store"]["loaded_tokens"] > 0
    assert loaded["tokens"]["computed"] < found
