"""Jobs on a cluster of three nodes, any of which can be lost: the bytes of one engine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.replicas.demo_job import demo_job, write_rows
from tests.replicas.faults.fault import Kind
from tests.replicas.faults.nodes import QUICK, Nodes
from tests.replicas.faults.seeded_faults import SETTINGS, SeededFaults
from tests.replicas.faults.watched_job import WatchedJob
from tests.replicas.processes import is_running
from tests.support.comparable import comparable_bytes
from tests.support.jsonl import read_jsonl

pytestmark = pytest.mark.long
ENDING = {Kind.ACTOR, Kind.WORKER, Kind.FROZEN, Kind.NODE, Kind.RAYLET}  # a replica each
HEAD_SECONDS = 120.0  # Ray ends a driver without head node after 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows."""
    folder = tmp_path_factory.mktemp("nodes")
    write_rows(folder / "rows.jsonl", times=3)
    return folder


@pytest.fixture(scope="module")
def wanted(folder: Path) -> bytes:
    """What one engine in this process answers."""
    engine = EngineConfig(model=demo_model_folder(), num_blocks=600, max_num_seqs=8)
    params = SamplingParams(max_tokens=12, temperature=1.0)
    return demo_job(folder, "one.jsonl", None, engine=engine, sampling=params)[1]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with Nodes(3, {**QUICK, **SETTINGS}) as nodes:
        yield nodes


@pytest.mark.parametrize("kind", list(Kind))
def test_a_job_survives(nodes: Nodes, folder: Path, wanted: bytes, kind: Kind) -> None:
    job = SeededFaults(nodes, folder, 0, kinds=[kind])
    job.run(wanted)
    (fault,) = job.faults
    assert fault.kind is kind
    died = {each["replica"] for each in fault.job.of("died")}
    if kind in ENDING:
        assert died == set(fault.replicas), "another one died, or none"
    else:
        assert not died


@pytest.mark.parametrize("seed", [1000, 1001])
def test_a_job_survives_several_faults(
    nodes: Nodes, folder: Path, wanted: bytes, seed: int
) -> None:
    job = SeededFaults(nodes, folder, seed, num_faults=4)
    job.run(wanted)
    assert job.faults


def test_a_node_that_is_added_gets_the_replica_that_waits_for_room(
    folder: Path, wanted: bytes
) -> None:
    with Nodes(1) as nodes:
        job = WatchedJob(nodes, folder, "added.jsonl", 2, step_s=0.05)
        job.until_rows(20)
        assert len(job.of("joined")) == 1
        nodes.add()
        job.until(lambda: any(each["replica"] == 1 for each in job.of("row")))
        report = job.report()
    assert comparable_bytes(folder / "added.jsonl") == wanted
    assert len(report["replicas"]) == 2
    assert all(each["rows"] for each in report["replicas"])


def test_the_command_and_python_users_get_the_same_from_one_and_three_nodes(
    nodes: Nodes, folder: Path
) -> None:
    outputs = [folder / f"command-{count}.jsonl" for count in (1, 3)]
    for output, count in zip(outputs, ("1", "3"), strict=True):
        flags = ["--max-tokens", "12", "--temperature", "1", "--ordered", "--quiet"]
        flags += ["--replicas", count, "--ray-address", nodes.address, "--cpus-per-replica", "1"]
        files = [str(folder / "rows.jsonl"), "-o", str(output), "--model", "demo"]
        done = subprocess.run(
            [sys.executable, "-m", "pagedrun", "generate", *files, *flags],
            env=nodes.environment,
            timeout=300,
            check=False,
        )
        assert done.returncode == 3  # some rows cannot be asked
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    code = f"""
from pagedrun import LLM, SamplingParams
from pagedrun.recipes.demo import demo_model_folder
prompts = [[1 + place % 7] * 40 + [place] for place in range(120)]
params = SamplingParams(max_tokens=6, temperature=1.0, seed=3)
one = LLM(model=demo_model_folder()).generate(prompts, params)
llm = LLM(model=demo_model_folder(), replicas=3, ray_address={nodes.address!r}, cpus_per_replica=1)
assert [each.outputs for each in llm.generate(prompts, params)] == [each.outputs for each in one]
assert len(llm.report["replicas"]) == 3
"""
    subprocess.run([sys.executable, "-c", code], env=nodes.environment, timeout=300, check=True)


def test_without_its_head_node_a_job_ends_and_is_resumed_on_another_cluster(
    folder: Path, wanted: bytes
) -> None:
    with Nodes(2) as nodes:
        job = WatchedJob(nodes, folder, "head.jsonl", 2, step_s=0.3)
        job.until_rows(40)
        replicas = nodes.replicas
        os.kill(nodes.gcs, signal.SIGKILL)
        assert job.result(HEAD_SECONDS) != 0
        until = time.monotonic() + 20
        while any(map(is_running, replicas)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(is_running, replicas))
    assert (folder / "head.jsonl").read_bytes().endswith(b"\n")
    with Nodes(2) as nodes:
        WatchedJob(nodes, folder, "head.jsonl", 2, resume=True).report()
    assert comparable_bytes(folder / "head.jsonl") == wanted


def test_a_row_that_ends_its_process_becomes_an_error_and_no_other_row_does(
    nodes: Nodes, folder: Path, wanted: bytes
) -> None:
    poison = 501
    job = WatchedJob(nodes, folder, "poison.jsonl", 3, poison=[poison])
    report = job.report()
    rows = read_jsonl(folder / "poison.jsonl")
    failed = [row for row in rows if (row.get("error") or {}).get("code") == "replica_died"]
    assert [row["index"] for row in failed] == [poison]
    found = comparable_bytes(folder / "poison.jsonl").splitlines()
    assert [
        place
        for place, pair in enumerate(zip(found, wanted.splitlines(), strict=True))
        if pair[0] != pair[1]
    ] == [poison]
    died = [each for each in report["replicas"] if "died" in each]
    assert "raylet" not in (folder / "poison.jsonl.stderr").read_text(), "Ray prints among the rows"
    assert 3 <= len(died) <= 8
