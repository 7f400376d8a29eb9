"""The recorded disk: what a power cut may leave, and what it may not."""

import os
import random
from pathlib import Path

import pytest

from tests.simulation.disk import DiskModel, RecordedDisk, State


@pytest.fixture
def disk(tmp_path: Path) -> RecordedDisk:
    (tmp_path / "old").write_bytes(b"o" * 600)
    return RecordedDisk(tmp_path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECTORY if path.is_dir() else 0))
    os.fsync(descriptor)
    os.close(descriptor)


def put(path: Path, data: bytes, offset: int, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags)
    os.pwrite(descriptor, data, offset)
    os.close(descriptor)


def states(disk: RecordedDisk, model: DiskModel, place: int | None = None) -> list[State]:
    """Return all states that are drawn in many cuts."""
    draw, place = random.Random(0), len(disk.calls) if place is None else place
    found = [disk.after_cut(place, model, draw) for _ in range(300)]
    return [each for i, each in enumerate(found) if each not in found[:i]]


def test_without_a_sync_all_may_be_lost(disk: RecordedDisk) -> None:
    with disk.recording():
        put(disk.root / "new", b"abc", 0)
        os.replace(disk.root / "new", disk.root / "moved")
    assert states(disk, DiskModel.LOST) == [{"old": b"o" * 600}]


def test_names_and_contents_are_kept_apart(disk: RecordedDisk) -> None:
    with disk.recording():
        put(disk.root / "new", b"abc", 0)
        os.replace(disk.root / "new", disk.root / "old")
        sync(disk.root)
    assert states(disk, DiskModel.LOST) == [{"old": b""}]
    left = [each["old"] for each in states(disk, DiskModel.SUBSET)]
    assert {b"", b"abc", b"\0\0\0", b"a\0\0"} <= set(left)


def test_what_was_synced_stays(disk: RecordedDisk) -> None:
    with disk.recording():
        put(disk.root / "new", b"abc", 0)
        sync(disk.root / "new")
        sync(disk.root)
        put(disk.root / "new", b"xyz", 5)
        os.unlink(disk.root / "old")
    for model in DiskModel:
        for state in states(disk, model):
            data = state["new"]
            assert data is not None
            assert data.startswith(b"abc")
            assert set(data[3:5]) <= {0}
    assert {len(state) for state in states(disk, DiskModel.SUBSET)} == {1, 2}


def test_only_the_last_write_is_torn(disk: RecordedDisk) -> None:
    with disk.recording():
        put(disk.root / "new", b"abc", 0)
        put(disk.root / "new", b"xyz", 3)
    left = {state["new"] for state in states(disk, DiskModel.TORN)}
    assert left == {b"abc\0\0\0", b"abcx\0\0", b"abcxy\0", b"abcxyz"}


def test_sectors_are_replaced_whole(disk: RecordedDisk) -> None:
    with disk.recording():
        put(disk.root / "old", b"n" * 590, 5)
    left = {state["old"] for state in states(disk, DiskModel.TORN)}
    assert left == {b"o" * 600, b"o" * 5 + b"n" * 507 + b"o" * 88, b"o" * 5 + b"n" * 590 + b"o" * 5}


def test_what_is_in_a_lost_folder_is_lost(disk: RecordedDisk) -> None:
    with disk.recording():
        (disk.root / "made").mkdir()
        put(disk.root / "made" / "new", b"abc", 0)
        sync(disk.root / "made" / "new")
        sync(disk.root / "made")
    assert states(disk, DiskModel.LOST) == [{"old": b"o" * 600}]


def test_a_write_past_the_calls_is_noticed(disk: RecordedDisk) -> None:
    with pytest.raises(AssertionError, match="past the recorded calls"), disk.recording():
        (disk.root / "new").write_text("by another way")
