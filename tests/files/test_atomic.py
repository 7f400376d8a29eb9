"""Atomic writes: what is on disk before what, and what a failed write leaves."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.files.atomic import make_folder, remove_leftovers, replace_file


def kind_of(descriptor: int) -> str:
    return "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls that make a file durable, in their order."""
    noted: list[str] = []
    fsync, rename = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        noted.append(f"sync {kind_of(descriptor)} of {os.fstat(descriptor).st_size}")
        fsync(descriptor)

    def note_rename(source: Any, target: Any) -> None:
        noted.append("rename")
        rename(source, target)

    monkeypatch.setattr("pagedrun.paged.files.atomic.os.fsync", note_sync)
    monkeypatch.setattr("pagedrun.paged.files.atomic.os.replace", note_rename)
    return noted


def test_a_file_is_on_disk_before_its_name_and_the_name_at_the_end(
    tmp_path: Path, calls: list[str]
) -> None:
    replace_file(tmp_path / "report.json", [b"whole", b" text"])
    assert [call.split(" of ")[0] for call in calls] == ["sync file", "rename", "sync folder"]
    assert calls[0] == "sync file of 10"  # all chunks had left the buffer


def test_a_new_file_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "report.json", [b"x"])
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o600


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        replace_file(path, chunks())
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [
        ("report.json", b"old")
    ]


def test_only_leftovers_of_the_output_and_its_side_files_are_removed(tmp_path: Path) -> None:
    gone = [f".out.jsonl{beside}.{'0a' * 8}.tmp" for beside in ("", ".run.json", ".snapshot.npz")]
    kept = [f".{other}.{'0a' * 8}.tmp" for other in ("my-out.jsonl", "out.jsonl.gz", "outXjsonl")]
    for name in [*gone, *kept]:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path / "out.jsonl")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(kept)


def test_a_folder_is_made_with_those_that_hold_it_and_each_name_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("pagedrun.paged.files.atomic.sync_folder", synced.append)
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert sorted(synced) == [tmp_path, tmp_path / "a"]
    make_folder(tmp_path / "a" / "b")  # it exists: nothing is new
    assert len(synced) == 2
    with pytest.raises(FileNotFoundError):
        make_folder(tmp_path / "c" / "d", parents=False)
