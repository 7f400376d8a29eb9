"""Whole jobs with replicas in processes of Ray's: the same bytes, whatever happens to them."""

import os
import random
import signal
import stat
import time
from pathlib import Path

import pytest

from pagedrun.paged.llm import LLM
from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.replicas.demo_job import Watcher, demo_job, write_rows
from tests.replicas.processes import descendants, is_running, listening_addresses, replica_pids
from tests.support.streamed import packed_entries

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows."""
    folder = tmp_path_factory.mktemp("replicas")
    write_rows(folder / "rows.jsonl")
    return folder


@pytest.fixture(scope="module")
def wanted(rows: Path) -> bytes:
    """What one engine in this process answers."""
    return demo_job(rows, "one.jsonl", None)[1]


@pytest.mark.parametrize(
    "num_replicas",
    [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(3, marks=pytest.mark.long)],
)
def test_replicas_give_the_bytes_of_one_engine(
    cluster: RayCluster, rows: Path, wanted: bytes, num_replicas: int
) -> None:
    result, found = demo_job(rows, f"{num_replicas}.jsonl", num_replicas)
    assert found == wanted
    figures = result.report["replicas"]
    assert len(figures) == num_replicas
    assert all("died" not in each for each in figures)
    assert sum(each["computed_tokens"] for each in figures) == result.report["tokens"]["computed"]
    until = time.monotonic() + 20  # Ray has been told to end them, and need not have done it yet
    while replica_pids() and time.monotonic() < until:
        time.sleep(0.05)
    assert not replica_pids()


def test_replicas_share_packed_weights(
    cluster: RayCluster, rows: Path, wanted: bytes, tmp_path: Path
) -> None:
    engine = EngineConfig(
        model=demo_model_folder(),
        num_blocks=600,
        max_num_seqs=32,
        weights_memory=1_000_000,
        packed_dir=tmp_path / "packed",
        speculate="2",
    )
    result, found = demo_job(rows, "streamed.jsonl", 2, engine=engine)
    assert found == wanted
    assert len(packed_entries(tmp_path / "packed")) == 4  # three layers and the head
    weights = result.report["weights"]
    assert weights["bytes_read"] > 0.8 * weights["passes"] * weights["streamed_bytes"]
    speculation = result.report["speculation"]
    assert 0 < speculation["accepted"] <= speculation["proposed"]
    assert sum(speculation["by_source"].values()) == speculation["accepted"]
    assert 1.0 < speculation["tokens_per_step"] <= 3.0


def test_a_killed_replica_costs_no_row_and_no_byte(
    cluster: RayCluster, rows: Path, wanted: bytes
) -> None:
    watcher = Watcher(60, lambda: os.kill(replica_pids()[0], signal.SIGKILL))
    result, found = demo_job(rows, "killed.jsonl", 2, watcher)
    assert found == wanted
    assert [each for each in result.report["replicas"] if "died" in each]
    assert any("its rows go to others" in told for told in watcher.warnings)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_replicas_killed_at_random_cost_no_row_and_no_byte(
    cluster: RayCluster, rows: Path, wanted: bytes, seed: int
) -> None:
    drawn = random.Random(seed)
    signum = drawn.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])

    def kill() -> None:
        os.kill(drawn.choice(replica_pids()), signum)

    _, found = demo_job(rows, f"seed-{seed}.jsonl", 3, Watcher(drawn.randrange(1, 340), kill))
    assert found == wanted


@pytest.mark.long
def test_a_frozen_replica_loses_its_rows_to_others_and_thaws_in_vain(
    cluster: RayCluster, rows: Path, wanted: bytes
) -> None:
    frozen: list[int] = []

    def freeze() -> None:
        frozen.append(replica_pids()[0])
        os.kill(frozen[0], signal.SIGSTOP)

    _, found = demo_job(rows, "frozen.jsonl", 2, Watcher(60, freeze), stall_timeout=5.0)
    assert found == wanted
    assert frozen
    if is_running(frozen[0]):
        os.kill(frozen[0], signal.SIGCONT)


@pytest.mark.long
def test_a_job_runs_with_what_there_is_room_for(
    cluster: RayCluster, rows: Path, wanted: bytes
) -> None:
    watcher = Watcher()
    result, found = demo_job(rows, "room.jsonl", 5, watcher)
    assert found == wanted
    assert sum("kv" in each for each in result.report["replicas"]) <= 3
    assert any("there is room for" in told for told in watcher.warnings)


def test_a_local_cluster_listens_on_loopback_only_and_keeps_its_files_private(
    cluster: RayCluster,
) -> None:
    ours = [pid for pid, line in descendants(os.getpid()).items() if "ray" in line]
    found = listening_addresses([os.getpid(), *ours])
    assert found
    assert found <= LOOPBACK
    folder = cluster.folder
    assert folder is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600


def test_ray_prints_nothing_among_the_rows(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"lines": ["A worker died or was killed"], "pid": "raylet", "is_err": False}
    cluster.ray._private.worker.print_to_stdstream(said, ignore_prefix=False)
    assert capsys.readouterr() == ("", "")


def test_no_text_of_prompts_is_in_the_cluster_s_files(
    cluster: RayCluster, rows: Path, wanted: bytes
) -> None:
    demo_job(rows, "text.jsonl", 1, limit=40)
    folder = cluster.folder
    assert folder is not None
    time.sleep(0.5)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert b"staff directory" not in path.read_bytes()


@pytest.mark.long
def test_python_users_get_the_answers_of_one_engine(cluster: RayCluster) -> None:
    prompts = [[1 + place % 7] * 40 + [place] for place in range(120)]
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=3)
    one = LLM(model=demo_model_folder()).generate(prompts, params)
    llm = LLM(model=demo_model_folder(), replicas=2, cpus_per_replica=1)
    for _ in range(2):  # each call has replicas of its own
        several = llm.generate(prompts, params)
        assert [each.outputs for each in several] == [each.outputs for each in one]
        assert len(llm.report["replicas"]) == 2
