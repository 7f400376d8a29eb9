"""Vectors and scores with replicas in processes of Ray's: the same bytes as one engine."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.values.engine_config import EngineConfig, ReplicaConfig, WindowSize
from pagedrun.paged.values.pooling import PairOrder, PoolingParams, Task
from tests.replicas.demo_job import Watcher
from tests.replicas.processes import replica_pids
from tests.support.tiny_encoders import texts, write_model


def job(
    folder: Path,
    name: str,
    num_replicas: int | None,
    params: PoolingParams,
    watcher: Watcher | None = None,
    **engine: Any,
) -> JobResult:
    config = JobConfig(
        input=str(folder / "rows.jsonl"),
        output=str(folder / name),
        engine=EngineConfig(model=folder / "model", dtype="float32", **engine),
        window=WindowSize(rows=150),
        ordered=True,
        replicas=ReplicaConfig(
            replicas=num_replicas, cpus_per_replica=None if num_replicas is None else 1
        ),
        pooled=params,
    )
    return run_job(config, watcher)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with texts, some of them equal, and rows that fail."""
    given = texts([1 + i % 40 for i in range(280)])
    rows: list[dict[str, Any]] = [{"text": each} for each in (*given[:30], *given)]
    rows += [{"n": 1}, {"text": "w1 " * 999}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return tmp_path


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_replicas_give_the_vectors_of_one_engine(
    kind: str, cluster: RayCluster, folder: Path
) -> None:
    write_model(folder / "model", kind)
    params = PoolingParams(task=Task.EMBED, normalize=True)
    job(folder, "one.npy", None, params)
    result = job(folder, "two.npy", 2, params)
    assert (folder / "two.npy").read_bytes() == (folder / "one.npy").read_bytes()
    assert np.isnan(np.load(folder / "two.npy")).any(axis=1).sum() == 2
    assert result.report["rows"] == {"total": 312, "ok": 310, "failed": 2, "skipped": 0}
    figures = result.report["pooling"]
    assert (figures["texts"], figures["dimensions"]) == (310, 64)
    assert figures["distinct_texts"] <= 300
    assert len(result.report["replicas"]) == 2


def test_a_killed_replica_costs_no_vector(cluster: RayCluster, folder: Path) -> None:
    write_model(folder / "model", "bert")
    params = PoolingParams(task=Task.EMBED)
    job(folder, "one.npy", None, params)
    killed: list[int] = []

    def kill() -> None:
        killed.extend(replica_pids()[:1])
        os.kill(killed[0], signal.SIGKILL)

    job(folder, "two.npy", 2, params, Watcher(20, kill), max_num_batched_tokens=1)
    assert killed
    assert (folder / "two.npy").read_bytes() == (folder / "one.npy").read_bytes()


def test_replicas_rank_documents(cluster: RayCluster, tmp_path: Path) -> None:
    write_model(tmp_path / "model", "qwen3", "ForCausalLM", tie_word_embeddings=True)
    config = tmp_path / "model" / "config.json"
    known = {**json.loads(config.read_text()), "is_original_qwen3_reranker": True}
    config.write_text(json.dumps(known))
    documents = texts([60, 70, 80], seed=2)
    rows = [{"query": each, "documents": documents} for each in texts([4, 5] * 40, seed=3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    params = PoolingParams(task=Task.RERANK, pair_order=PairOrder.DOCUMENT, top_n=2)
    job(tmp_path, "one.jsonl", None, params)
    result = job(tmp_path, "two.jsonl", 2, params)
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert result.report["pooling"]["texts"] == 240
