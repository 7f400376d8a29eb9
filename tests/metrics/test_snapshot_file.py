"""A snapshot file from anywhere: read whole, or refused with one sentence."""

import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.metrics.snapshot import (
    Branchings,
    Lengths,
    Preemptions,
    PrefixNodes,
    Snapshot,
)
from pagedrun.paged.metrics.snapshot_file import read_snapshot
from pagedrun.paged.values.errors import UsageError
from tests.support.small_runs import play


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    """The columns of a good file, with something in every table."""
    snapshot = play(2).snapshot()
    names = type(snapshot).__slots__
    full = Snapshot(
        **{name: getattr(snapshot, name) for name in names}
        | {
            "preemptions": Preemptions.of(
                step=[3],
                row=[1],
                sample=[0],
                swapped=[True],
                tokens=[7],
                blocks=[2],
                for_row=[0],
                needed=[1],
                free=[0],
            ),
            "prefixes": PrefixNodes.of(
                parent=[-1, 0], start=[0, 4], end=[4, 9], rows=[5, 2], row=[0, 1], saved=[16, 4]
            ),
            "lengths": Lengths.of(tokens=[3, 9], prompts=[1, 2], answers=[0, 1]),
            "branchings": Branchings.of(step=[4], row=[2], forked=[1], died=[1], freed=[0]),
        }
    )
    with np.load(io.BytesIO(full.to_bytes())) as archive:
        return {name: archive[name] for name in archive.files}


def written(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("wb") as file:
        np.savez_compressed(file, **columns)
    return path


def test_what_was_written_is_read(tmp_path: Path, columns: dict[str, Any]) -> None:
    snapshot = read_snapshot(written(tmp_path / "s.npz", columns))
    assert snapshot.to_bytes() == read_snapshot(written(tmp_path / "t.npz", columns)).to_bytes()
    assert len(snapshot.holdings) == len(columns["holdings.row"]) > 5


def spoilt(column: Any, place: int, value: float) -> Any:
    column = column.copy()
    column[place] = value
    return column


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("samples.steps", 0, -1),
        ("samples.steps", -1, 10**6),
        ("samples.steps", 1, 0),
        ("samples.times", 0, np.nan),
        ("samples.times", 0, -1.0),
        ("samples.times", 0, 99.0),
        ("samples.fills", 0, 60_000),
        ("holdings.row", 0, -1),
        ("holdings.sample", 0, -1),
        ("holdings.position", 0, -5),
        ("holdings.block", 0, -1),
        ("holdings.block", 0, 6),
        ("holdings.begin", 0, 19),
        ("holdings.begin", -1, 0),
        ("holdings.end", -1, 22),
        ("holdings.end", -1, -1),
        ("preemptions.step", 0, 22),
        ("preemptions.row", 0, -1),
        ("preemptions.needed", 0, -1),
        ("preemptions.for_row", 0, -2),
        ("prefixes.parent", 0, 0),
        ("prefixes.parent", 1, 1),
        ("prefixes.parent", 1, -2),
        ("prefixes.start", 1, 10),
        ("prefixes.saved", 0, -1),
        ("lengths.tokens", 1, 3),
        ("lengths.tokens", 0, -3),
        ("lengths.answers", 0, -3),
        ("branchings.step", 0, 21),
        ("branchings.row", 0, -1),
        ("branchings.freed", 0, -1),
    ],
)
def test_a_number_out_of_range_is_refused(
    tmp_path: Path, columns: dict[str, Any], name: str, place: int, value: float
) -> None:
    path = written(tmp_path / "s.npz", columns | {name: spoilt(columns[name], place, value)})
    with pytest.raises(UsageError, match=r"s\.npz is not a snapshot that pagedrun can read: \w"):
        read_snapshot(path)


def facts(columns: dict[str, Any], **changes: Any) -> Any:
    known = json.loads(columns["facts"].tobytes()) | changes
    return np.frombuffer(json.dumps(known).encode(), np.uint8)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"format": None},
        {"num_blocks": -1},
        {"num_blocks": 7},
        {"num_blocks": 1e3},
        {"num_blocks": True},
        {"num_blocks": 10**30},
        {"block_size": 70_000},
        {"block_size": "4"},
        {"bytes_per_token": 2**60},
        {"num_steps": 2**40},
        {"num_steps": 3},
        {"row_stride": 0},
    ],
    ids=str,
)
def test_facts_that_cannot_be_are_refused(
    tmp_path: Path, columns: dict[str, Any], changes: dict[str, Any]
) -> None:
    path = written(tmp_path / "s.npz", columns | {"facts": facts(columns, **changes)})
    with pytest.raises(UsageError, match="not a snapshot"):
        read_snapshot(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": np.frombuffer(b"[]", np.uint8)},
        {"facts": np.frombuffer(b"{", np.uint8)},
        {"facts": np.frombuffer(b"[" * 100_000, np.uint8)},
        {"facts": np.frombuffer(b"\xff", np.uint8)},
        {"facts": np.array(["a"], object)},
        {"samples.steps": np.array(3)},
        {"samples.steps": np.zeros(20, "complex128")},
        {"samples.times": np.zeros(20, "datetime64[s]")},
        {"samples.ref_counts": np.zeros((20, 6), np.int64)},
        {"samples.ref_counts": np.zeros((6, 20), np.uint16)},
        {"holdings.row": np.zeros(3, np.int32)},
        {"holdings.row": np.array(3, np.int32)},
        {"holdings.row": np.array([None], object)},
        {"holdings.row": np.zeros((2, 2), np.int32)},
        {"holdings.found": np.zeros(5, np.int32)},
        {"prefixes.saved": np.zeros(2, ">i8")},
    ],
    ids=str,
)
def test_columns_of_another_kind_are_refused(
    tmp_path: Path, columns: dict[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="not a snapshot"):
        read_snapshot(written(tmp_path / "s.npz", columns | changes))


def test_a_column_that_is_missing_is_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    for name in columns:
        rest = {other: column for other, column in columns.items() if other != name}
        with pytest.raises(UsageError, match="not a snapshot"):
            read_snapshot(written(tmp_path / "s.npz", rest))


def test_a_file_of_an_earlier_version_has_no_beams(tmp_path: Path, columns: dict[str, Any]) -> None:
    earlier = {name: each for name, each in columns.items() if "branchings" not in name}
    snapshot = read_snapshot(written(tmp_path / "s.npz", earlier))
    assert len(snapshot.branchings) == 0
    assert len(snapshot.holdings) == len(columns["holdings.row"])


def test_no_damage_to_the_bytes_does_more_than_be_refused(
    tmp_path: Path, columns: dict[str, Any]
) -> None:
    good = written(tmp_path / "s.npz", columns).read_bytes()
    chance = random.Random(7)
    path = tmp_path / "damaged.npz"
    sentences = []
    for _ in range(200):
        data = bytearray(good)
        for _ in range(chance.choice([1, 1, 4])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            read_snapshot(path)
        except UsageError as error:
            sentences.append(str(error))
    assert len(sentences) > 100
    assert [each for each in sentences if not each.startswith(f"{path} is not a snapshot")] == []


def test_a_foreign_archive_and_a_bomb_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("facts", "hello")
    with pytest.raises(UsageError, match="not a snapshot"):
        read_snapshot(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(9):
            archive.writestr(f"{number}.npy", bytes(2**17))
    with pytest.raises(UsageError, match="unpacks to more than"):
        read_snapshot(path, max_bytes=2**20)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_snapshot(tmp_path / name)
