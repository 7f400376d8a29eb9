import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.values.engine_config import ReplicaConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.recipes.demo import demo_prompts_path


def test_without_ray_the_line_that_installs_it_is_told_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = dict(os.environ)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("pagedrun.paged.replicas.ray_cluster.MAX_PATH", 1000)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'ray>=2\.59'"):
        RayCluster(ReplicaConfig(replicas=2), 2)
    assert not list(tmp_path.iterdir())
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "given", [{"ray_address": "auto"}, {"cpus_per_replica": 2}, {"push_model": True}]
)
def test_what_says_something_of_replicas_only_is_refused_without_them(
    given: dict[str, object],
) -> None:
    with pytest.raises(UsageError, match="needs replicas"):
        ReplicaConfig(**given).refuse_alone(given)  # type: ignore[arg-type]


def test_an_address_at_which_nothing_answers_is_refused_at_once() -> None:
    """Ray would try for minutes. In another process: where there is a cluster, that is used."""
    code = (
        "from pagedrun.paged.replicas.ray_cluster import RayCluster as C\n"
        "from pagedrun.paged.values.engine_config import ReplicaConfig as R\n"
        "C(R(replicas=1, ray_address='127.0.0.1:9'), 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "UsageError" in done.stderr
    assert "the cluster cannot be joined ([Errno 111]" in done.stderr


@pytest.mark.long
def test_a_cluster_that_is_not_there_is_refused_with_what_to_look_at(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    files = [str(demo_prompts_path()), "-o", str(output), "--model", "demo"]
    flags = ["--replicas", "1", "--ray-address", "127.0.0.1:9", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "pagedrun", "generate", *files, *flags],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert "--ray-address 127.0.0.1:9: the cluster cannot be joined" in told
    assert "token" in told
    assert not output.exists()
