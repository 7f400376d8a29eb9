"""Groups of layers in a snapshot: who held what at each moment, and files that are spoilt."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.metrics.inspection import InspectionQuery, inspect_run
from pagedrun.paged.metrics.pool_moments import Moment, group_tables, inspected_groups
from pagedrun.paged.metrics.saved_report import SavedReport
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.snapshot_file import read_snapshot
from pagedrun.paged.values.errors import UsageError
from tests.support.grouped_run import SHAPES, SIZE, WINDOW, GroupedRun
from tests.support.small_runs import play


@pytest.fixture(scope="module")
def run() -> GroupedRun:
    return GroupedRun()


@pytest.fixture(scope="module")
def snapshot(run: GroupedRun, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """As it is read from its file."""
    path = tmp_path_factory.mktemp("grouped") / "s.npz"
    path.write_bytes(run.snapshot().to_bytes())
    return read_snapshot(path)


def test_a_file_has_what_was_recorded(run: GroupedRun, snapshot: Snapshot) -> None:
    assert snapshot.to_bytes() == run.snapshot().to_bytes()
    assert (snapshot.first_group, snapshot.further[0].shape) == SHAPES


def test_every_moment_tells_which_sequence_held_which_blocks(
    run: GroupedRun, snapshot: Snapshot
) -> None:
    given_back = 0
    for number in range(len(snapshot.samples)):
        moment = Moment.of(snapshot, number)
        truth = run.held[moment.step - 1]
        told = {
            (row, table["sample"]): [
                (each["logical"], each["physical"]) for each in table["blocks"]
            ]
            for row in range(3)
            for table in group_tables(snapshot, row, moment)
        }
        assert told == {who: list(enumerate(ids, first)) for who, (first, ids) in truth.items()}
        given_back += sum(first > 0 for first, _ in truth.values())
    assert given_back > 20


def test_the_pools_of_a_moment(run: GroupedRun, snapshot: Snapshot) -> None:
    """Counts are those of the group's own pool; the peak is known though it was not sampled."""
    moment = Moment.of(snapshot, len(snapshot.samples) // 2)
    full, windowed = inspected_groups(snapshot, moment)
    assert (full["num_layers"], full["window"]) == (1, None)
    assert (windowed["num_layers"], windowed["window"]) == (5, WINDOW)
    assert windowed["pool_bytes"] == 24 * SIZE * 40
    assert windowed["moment"] is not None
    assert windowed["moment"]["allocated"] == run.num_held[moment.step - 1] > 0
    assert windowed["peak_blocks"] == run.drive.windowed_pools[0].counts.peak_held
    assert windowed["peak_bytes"] == windowed["peak_blocks"] * SIZE * 40
    assert full["peak_blocks"] == np.count_nonzero(snapshot.samples.ref_counts, axis=1).max()


def test_an_inspection_has_the_bytes_of_all_groups(snapshot: Snapshot) -> None:
    found = inspect_run(snapshot, None, InspectionQuery(rows=(0,)))
    assert found["pool"]["pool_bytes"] == (60 * 8 + 24 * 40) * SIZE
    [table] = found["rows"][0]["group_tables"]
    assert (table["group"], table["window"]) == (1, WINDOW)
    assert table["blocks"][0]["logical"] > 0


def test_one_group_is_not_told_of() -> None:
    plain = play(2).snapshot()
    with np.load(io.BytesIO(plain.to_bytes())) as archive:
        assert not [name for name in archive.files if name.startswith("group")]
        assert "groups" not in json.loads(archive["facts"].tobytes())
    found = inspect_run(plain, None, InspectionQuery(rows=(0,)))
    assert "groups" not in found
    assert "group_tables" not in found["rows"][0]


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("group1.fills", (0, 0), SIZE + 1),
        ("group1.blocks", 0, 24),
        ("group1.blocks", 0, -1),
        ("group1.moment", -1, 10**6),
        ("group1.moment", 0, -1),
        ("group1.row", 0, -1),
        ("group1.first", 0, -1),
        ("group1.count", 0, -1),
        ("group1.count", 0, 500),
    ],
)
def test_a_number_out_of_range_is_refused(
    tmp_path: Path, snapshot: Snapshot, name: str, place: Any, value: int
) -> None:
    with np.load(io.BytesIO(snapshot.to_bytes())) as archive:
        columns = {each: archive[each] for each in archive.files}
    columns[name][place] = value
    refuses(tmp_path, columns)


@pytest.mark.parametrize(
    "change",
    [
        {"groups": [{"num_layers": 1}]},
        {"groups": 7},
        {"groups": []},
        {"groups": [{"num_layers": 1, "window": None, "num_blocks": 9, "bytes_per_token": 1}] * 2},
        {"groups": [{"num_layers": 1}] * 100},
        {"peak_blocks": [25]},
        {"peak_blocks": [-1]},
        {"peak_blocks": [1, 1]},
    ],
    ids=str,
)
def test_facts_that_cannot_be_are_refused(
    tmp_path: Path, snapshot: Snapshot, change: dict[str, Any]
) -> None:
    with np.load(io.BytesIO(snapshot.to_bytes())) as archive:
        columns = {each: archive[each] for each in archive.files}
    known = json.loads(columns["facts"].tobytes()) | change
    refuses(tmp_path, columns | {"facts": np.frombuffer(json.dumps(known).encode(), np.uint8)})


def refuses(folder: Path, columns: dict[str, Any]) -> None:
    with (folder / "s.npz").open("wb") as file:
        np.savez_compressed(file, **columns)
    with pytest.raises(UsageError, match=r"s\.npz is not a snapshot that pagedrun can read: \w"):
        read_snapshot(folder / "s.npz")


KV = {"block_size": 4, "num_blocks": 60, "bytes_per_token": 48}
GROUP = {
    "num_layers": 5,
    "window": 9,
    "num_blocks": 24,
    "bytes_per_token": 40,
    "pool_bytes": 3840,
    "peak_blocks": 20,
    "peak_bytes": 3200,
}


def test_a_report_alone_tells_of_its_groups(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"kv": {**KV, "groups": [GROUP | {"window": None}, GROUP]}}))
    found = inspect_run(None, SavedReport.read(path), InspectionQuery())
    assert [each["window"] for each in found["groups"]] == [None, 9]
    assert found["pool"]["pool_bytes"] == 2 * 3840
    assert found["groups"][1] == {**GROUP, "moment": None}


@pytest.mark.parametrize("groups", [7, [7], [{}], [GROUP | {"num_blocks": "x"}], {"a": 1}], ids=str)
def test_groups_of_a_report_that_make_no_sense_are_refused(tmp_path: Path, groups: Any) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"kv": {**KV, "groups": groups}}))
    with pytest.raises(UsageError, match=r"r\.json is not a report of pagedrun: .*groups"):
        SavedReport.read(path)
