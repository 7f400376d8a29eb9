from pathlib import Path

import pytest

from pagedrun.kernels.environment import cgroup
from pagedrun.kernels.environment.cgroup import ControlGroup, control_groups


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def folders(root: Path, membership: str, controller: str, version: int) -> list[str]:
    (root / "membership").write_text(membership)
    groups = [each for each in control_groups(controller) if each.version == version]
    return [str(each.folder.relative_to(root)) for each in groups]


def test_the_unified_hierarchy_from_the_inside_out(root: Path) -> None:
    found = folders(root, "0::/slice/pod/app\n", "memory", 2)
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
    root: Path, controller: str, expected: list[str]
) -> None:
    membership = "9:name=systemd:/s\n5:memory:/x/y\n4:cpu,cpuacct:/b\n3:cpuset:/\n0::/\n"
    assert folders(root, membership, controller, 1) == expected


def test_a_path_may_hold_colons_and_lead_out_of_the_namespace(root: Path) -> None:
    assert folders(root, "0::/a:b\n", "cpu", 2)[:2] == ["a:b", "."]
    assert folders(root, "0::/../up\n", "cpu", 2)[:3] == ["../up", "..", "."]


@pytest.mark.parametrize("membership", ["", "\n", "no colon", "1:2", "::"])
def test_a_strange_membership_stops_nothing(root: Path, membership: str) -> None:
    assert set(folders(root, membership, "cpu", 2)) <= {".", "unified"}


def test_no_membership_no_groups(root: Path) -> None:
    assert list(control_groups("memory")) == []


@pytest.mark.parametrize(
    ("text", "number"), [("12\n", 12), ("-1", -1), ("max\n", None), ("", None), ("1 2", None)]
)
def test_numbers_of_a_group(root: Path, text: str, number: int | None) -> None:
    (root / "limit").write_text(text)
    assert ControlGroup(root, 2).read_int("limit") == number


def test_files_that_cannot_be_read(root: Path) -> None:
    (root / "bytes").write_bytes(b"\xff\xfe")
    group = ControlGroup(root, 2)
    assert [group.read(name) for name in ("missing", ".", "bytes")] == [None, None, None]
    assert ControlGroup(root / "gone", 1).read_int("limit") is None
