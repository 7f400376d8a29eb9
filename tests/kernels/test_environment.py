"""Threads and environment variables of a process, and the control groups that limit them."""

import os
import platform
import resource
import subprocess
import sys
import warnings
from collections.abc import Container
from pathlib import Path
from types import ModuleType

import pytest

from pagedrun.kernels.environment import cgroup as cgroups
from pagedrun.kernels.environment import threads
from pagedrun.kernels.environment.cgroup import ControlGroup, control_groups


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cgroup tree on a machine of 64 CPUs, and no wish of the user's."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NUMBA_THREADING_LAYER", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # as in a program that just began
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("limit", "expected"), [("250000 100000", 3), ("50000 100000", 1), ("max 100000", 64)]
)
def test_quota_of_cgroup_v2_is_rounded_up(cgroup: Path, limit: str, expected: int) -> None:
    write(cgroup / "membership", "0::/\n")
    write(cgroup / "cpu.max", limit + "\n")
    assert threads.cpu_quota() == expected


def test_the_tightest_enclosing_group_decides(cgroup: Path) -> None:
    write(cgroup / "membership", "0::/slice/pod/app\n")
    write(cgroup / "slice/cpu.max", "800000 100000\n")
    write(cgroup / "slice/pod/cpu.max", "400000 100000\n")
    write(cgroup / "slice/pod/app/cpu.max", "max 100000\n")
    assert threads.cpu_quota() == 4


@pytest.mark.parametrize(("quota", "expected"), [("150000", 2), ("-1", 64)])
def test_quota_of_cgroup_v1(cgroup: Path, quota: str, expected: int) -> None:
    write(cgroup / "membership", "5:memory:/x\n4:cpu,cpuacct:/box\n")
    write(cgroup / "cpu,cpuacct/box/cpu.cfs_quota_us", quota + "\n")
    write(cgroup / "cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    assert threads.cpu_quota() == expected


def test_a_group_of_cgroup_v1_around_this_one(cgroup: Path) -> None:
    write(cgroup / "membership", "1:cpu:/pod/box\n")
    for folder, quota in (("cpu/pod/box", "900000"), ("cpu/pod", "300000"), ("cpu", "-1")):
        write(cgroup / folder / "cpu.cfs_quota_us", quota)
        write(cgroup / folder / "cpu.cfs_period_us", "100000")
    assert threads.cpu_quota() == 3


@pytest.mark.parametrize("limit", ["", "200000", "200000 0", "two 100000"])
def test_a_malformed_quota_is_no_limit(cgroup: Path, limit: str) -> None:
    write(cgroup / "membership", "0::/box\n")
    write(cgroup / "box/cpu.max", limit)
    write(cgroup / "cpu.max", "500000 100000")
    assert threads.cpu_quota() == 5


def test_without_cgroups_the_affinity_decides(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7, 9}, raising=False)
    assert threads.cpu_quota() == 3


@pytest.mark.parametrize(("asked", "expected"), [("5", 5), ("6,2", 6), ("0", 64), ("many", 64)])
def test_the_user_decides_first(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch, asked: str, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads.cpu_quota() == expected


def test_prepare_keeps_what_the_user_has_set(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(cgroup / "membership", "0::/\n")
    write(cgroup / "cpu.max", "200000 100000")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    threads.prepare_environment()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["NUMBA_NUM_THREADS"] == "2"
    assert os.environ["NUMBA_THREADING_LAYER"] in ("omp", "workqueue")


def test_prepare_warns_once_where_torch_was_first(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.warns(RuntimeWarning, match="OMP_WAIT_POLICY=passive"):
        threads.prepare_environment()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads.prepare_environment()  # the variable is set now: all is said
        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.delenv("OMP_WAIT_POLICY")
        threads.prepare_environment()


PREPARED = """
import os, sys
from importlib.abc import MetaPathFinder
class Watch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numba") and name not in seen:
            seen[name] = os.environ.get("OMP_WAIT_POLICY")
            print("first:", seen[name], flush=True)
            os._exit(0)
seen = {}
sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize(
    "program",
    [
        "import pagedrun; pagedrun.SamplingParams(); pagedrun.LLM",
        "sys.argv = ['pagedrun', 'generate', 'missing.jsonl', '-o', 'out.jsonl', '--quiet']\n"
        "from pagedrun.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import torch",
    ],
    ids=["attribute", "command"],
)
def test_torch_finds_the_environment_prepared(program: str, tmp_path: Path) -> None:
    """Whichever way a program comes in, the variable is set before torch and numba read it.

    To read them takes seconds: the program ends where it comes to the first of the two.
    """
    assert run_watched(program, tmp_path) == "first: passive\n"


def run_watched(program: str, folder: Path) -> str:
    """Return what a program prints that no environment is prepared for, and no warning allowed."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{PREPARED}\n{program}"],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout, done.stderr
    return done.stdout


def test_falls_back_to_numba_s_own_pool_without_openmp(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(threads, "CDLL", missing)
    threads.prepare_environment()
    assert os.environ["NUMBA_THREADING_LAYER"] == "workqueue"


@pytest.mark.parametrize(
    ("layer", "setting", "levels"),
    [
        ("omp", {}, {1}),  # Numba's threads do not let torch's start threads of their own
        pytest.param(  # as the user has it
            *("omp", {"OMP_MAX_ACTIVE_LEVELS": "3"}, range(2, 2**31)), marks=pytest.mark.long
        ),
        ("workqueue", {}, range(2**31)),
    ],
)
def test_kernels_run_on_either_layer_with_the_threads_asked_for(
    layer: str, setting: dict[str, str], levels: Container[int]
) -> None:
    code = (
        "from pagedrun.kernels.environment import threads; threads.prepare_environment()\n"
        "import torch, numba, ctypes; from pagedrun.kernels.cpu import norms; threads.configure()\n"
        "norms.rms_norm(torch.randn(400, 256), torch.ones(256), 1e-6)\n"
        "print(numba.threading_layer(), numba.get_num_threads(), torch.get_num_threads())\n"
        "print(ctypes.CDLL(None).omp_get_max_active_levels())"
    )
    if layer == "omp":
        pytest.importorskip("numba.np.ufunc.omppool")
    env = {name: value for name, value in os.environ.items() if "ACTIVE_LEVELS" not in name}
    env |= {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    env |= {"NUMBA_THREADING_LAYER": layer, **setting}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    found, level = done.stdout.splitlines()
    assert found.split() == [layer, "2", "2"]
    assert int(level) in levels


ALLOCATED = """
import resource
from pagedrun.kernels.environment import threads
threads.prepare_environment()
import torch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(12):  # the first ones find no hole in which they fit
    before = faults()
    results = [torch.ones(2**21) for _ in range(4)]
    del results
    taken = faults() - before
print(taken)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
@pytest.mark.parametrize("given", [{}, {"MALLOC_TRIM_THRESHOLD_": "65536"}], ids=str)
def test_results_of_an_operation_take_the_memory_of_those_before(given: dict[str, str]) -> None:
    pages = 4 * 2**23 // resource.getpagesize()
    env = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    env = {name: value for name, value in env.items() if name != "GLIBC_TUNABLES"} | given
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATED], env=env, capture_output=True, text=True, check=True
    )
    taken = int(done.stdout)
    assert taken > pages // 2 if given else taken < pages // 20


def folders(root: Path, membership: str, controller: str, version: int) -> list[str]:
    (root / "membership").write_text(membership)
    groups = [each for each in control_groups(controller) if each.version == version]
    return [str(each.folder.relative_to(root)) for each in groups]


def test_the_unified_hierarchy_from_the_inside_out(cgroup: Path) -> None:
    found = folders(cgroup, "0::/slice/pod/app\n", "memory", 2)
    assert found[:4] == ["slice/pod/app", "slice/pod", "slice", "."]
    assert set(found[4:]) == {f"unified/{name}" for name in found[:3]} | {"unified"}


@pytest.mark.parametrize(
    ("controller", "expected"),
    [
        ("memory", ["memory/x/y", "memory/x", "memory"]),
        ("cpu", ["cpu/b", "cpu", "cpu,cpuacct/b", "cpu,cpuacct"]),
        ("cpuset", ["cpuset"]),
        ("pids", []),
    ],
)
def test_only_the_hierarchy_of_the_controller(
    cgroup: Path, controller: str, expected: list[str]
) -> None:
    membership = "9:name=systemd:/s\n5:memory:/x/y\n4:cpu,cpuacct:/b\n3:cpuset:/\n0::/\n"
    assert folders(cgroup, membership, controller, 1) == expected


def test_a_path_may_hold_colons_and_lead_out_of_the_namespace(cgroup: Path) -> None:
    assert folders(cgroup, "0::/a:b\n", "cpu", 2)[:2] == ["a:b", "."]
    assert folders(cgroup, "0::/../up\n", "cpu", 2)[:3] == ["../up", "..", "."]


@pytest.mark.parametrize("membership", ["", "\n", "no colon", "1:2", "::"])
def test_a_strange_membership_stops_nothing(cgroup: Path, membership: str) -> None:
    assert set(folders(cgroup, membership, "cpu", 2)) <= {".", "unified"}


def test_no_membership_no_groups(cgroup: Path) -> None:
    assert list(control_groups("memory")) == []


@pytest.mark.parametrize(
    ("text", "number"), [("12\n", 12), ("-1", -1), ("max\n", None), ("", None), ("1 2", None)]
)
def test_numbers_of_a_group(cgroup: Path, text: str, number: int | None) -> None:
    (cgroup / "limit").write_text(text)
    assert ControlGroup(cgroup, 2).read_int("limit") == number


def test_files_that_cannot_be_read(cgroup: Path) -> None:
    (cgroup / "bytes").write_bytes(b"\xff\xfe")
    group = ControlGroup(cgroup, 2)
    assert [group.read(name) for name in ("missing", ".", "bytes")] == [None, None, None]
    assert ControlGroup(cgroup / "gone", 1).read_int("limit") is None
