"""Replicas of Ray's that cannot start, or would compute otherwise: no row is touched."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.paged.replicas import ray_pool
from pagedrun.paged.replicas.ray_actor import RayActor, ReplicaModel
from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.replicas.ray_pool import RayPool
from pagedrun.paged.values.errors import EngineError, UsageError
from pagedrun.recipes.demo import demo_model_folder
from tests.replicas.demo_job import demo_job, write_rows

pytestmark = pytest.mark.long
Change = Callable[[ReplicaModel], ReplicaModel]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows.jsonl")
    return tmp_path


def change_all_but(num_same: int, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replicas have another model than the driver, but for the first ones."""
    add = RayPool.add

    def add_changed(pool: RayPool) -> int:
        same = pool._model
        if next_number[0] >= num_same:
            pool._model = change(same)
        next_number[0] += 1
        number = add(pool)
        pool._model = same
        return number

    next_number = [0]
    monkeypatch.setattr(RayPool, "add", add_changed)


def refused(rows: Path, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        demo_job(rows, "out.jsonl", 2)
    assert not (rows / "out.jsonl").exists()


def test_a_model_that_a_node_does_not_have(
    cluster: RayCluster, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(model: ReplicaModel) -> ReplicaModel:
        return replace(model, config=replace(model.config, model=Path("/nowhere/model")))

    change_all_but(1, elsewhere, monkeypatch)
    told = (
        r"the replica on [\d.]+ cannot start: /nowhere/model does not exist; put it on every node "
        r"in the same place, or pass push_model"
    )
    refused(rows, UsageError, told)


def test_a_model_with_other_weights(
    cluster: RayCluster, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(demo_model_folder(), other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-2] ^= 1  # the last bit of a number
    (other / "model.safetensors").write_bytes(weights)

    def changed(model: ReplicaModel) -> ReplicaModel:
        return replace(model, config=replace(model.config, model=other))

    change_all_but(1, changed, monkeypatch)
    refused(rows, UsageError, r"has another weights of the model \(\w{12}, not \w{12}\) than the")


def test_another_number_of_threads(
    cluster: RayCluster, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_all_but(1, lambda model: replace(model, threads=2), monkeypatch)
    refused(rows, UsageError, r"has another threads \((1, not 2|2, not 1)\) than the one on")


def test_a_replica_whose_process_cannot_be_made_says_what_was_raised(
    cluster: RayCluster, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotMade(RayActor):
        def __init__(self, model: ReplicaModel, most_sharing: int) -> None:
            raise ModuleNotFoundError("No module named 'something'")

    monkeypatch.setattr(ray_pool, "RayActor", NotMade)
    refused(rows, EngineError, "ModuleNotFoundError: No module named 'something'")
