"""Whatever files a job with replicas reads and writes, they are those of one engine."""

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.signals import DEADLINE, JobInterrupted, exit_status
from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.replicas.demo_job import Watcher, demo_job, write_rows
from tests.support.arrow_types import every_type, stored
from tests.support.comparable import comparable_bytes, comparable_rows

pytestmark = pytest.mark.long
HOUR = 3600.0


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of rows, and the same rows in three files."""
    folder = tmp_path_factory.mktemp("files")
    write_rows(folder / "rows.jsonl")
    lines = (folder / "rows.jsonl").read_text().splitlines()
    for number in range(3):
        part = lines[120 * number : 120 * (number + 1)]
        (folder / f"part-{number}.jsonl").write_text("\n".join(part) + "\n")
    return folder


@pytest.fixture(scope="module")
def wanted(rows: Path) -> bytes:
    """What one engine in this process answers."""
    return demo_job(rows, "one.jsonl", None)[1]


def table(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or CSV file, but for what another schedule may change."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            found: list[dict[str, Any]] = list(csv.DictReader(file))
            for row in found:
                row["usage"] = json.loads(row["usage"])
    else:
        found = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    for row in found:
        del row["usage"]["cached_tokens"]
    return found


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_tables_are_those_of_one_engine(cluster: RayCluster, rows: Path, form: str) -> None:
    for name, num_replicas in (("one", None), ("two", 2)):
        demo_job(rows, f"{name}.{form}", num_replicas, columns=("all",))
    assert len(table(rows / f"one.{form}")) > 340
    assert table(rows / f"two.{form}") == table(rows / f"one.{form}")


def test_columns_of_every_arrow_type_come_back(cluster: RayCluster, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = every_type().append_column("prompt", [["a", None, "c"]])
    parquet.write_table(pyarrow.concat_tables([table] * 20), tmp_path / "in.parquet")
    given = parquet.read_table(tmp_path / "in.parquet")
    demo_job(tmp_path, "two.parquet", 2, input=str(tmp_path / "in.parquet"))
    found = parquet.read_table(tmp_path / "two.parquet").select(given.column_names)
    assert found.schema.equals(given.schema)
    assert stored(found) == stored(given)


def test_rows_in_the_order_in_which_they_end_are_the_same_rows(
    cluster: RayCluster, rows: Path, wanted: bytes
) -> None:
    demo_job(rows, "as-they-end.jsonl", 2, ordered=False)
    assert comparable_rows(rows / "as-they-end.jsonl") == comparable_rows(rows / "one.jsonl")


def test_several_inputs_in_windows_are_one_file(cluster: RayCluster, rows: Path) -> None:
    files = [str(rows / f"part-{number}.jsonl") for number in range(3)]
    inputs: dict[str, Any] = {"input": files[0], "more_inputs": tuple(files[1:])}
    _, one = demo_job(rows, "parts-one.jsonl", None, **inputs)
    _, two = demo_job(rows, "parts-two.jsonl", 2, **inputs)
    assert two == one
    assert one.count(b"\n") > 340


@pytest.mark.parametrize(("first", "then"), [(None, 2), (2, None), (2, 3)])
def test_answers_of_an_earlier_run_are_taken_whoever_computed_them(
    cluster: RayCluster, rows: Path, first: int | None, then: int | None
) -> None:
    """Half of the rows, and all of them with shorter answers, which are gone on with."""
    names = f"{first}-{then}"
    short = SamplingParams(max_tokens=5, temperature=1.0)
    demo_job(rows, f"old-{names}.jsonl", first, limit=200, sampling=short)
    old: dict[str, Any] = {"from_output": rows / f"old-{names}.jsonl"}
    with_one, one = demo_job(rows, f"from-one-{names}.jsonl", None, **old)
    result, found = demo_job(rows, f"from-{names}.jsonl", then, **old)
    assert found == one
    assert result.report["rows"] == with_one.report["rows"]
    assert result.report["rows"]["continued"] > 20


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell lets what it runs in the background ignore this signal, and then a job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("deadline", [None, HOUR])
@pytest.mark.parametrize(("first", "then"), [(2, 2), (None, 2), (2, None)])
def test_a_run_that_was_stopped_goes_on_whoever_began_it(
    cluster: RayCluster,
    rows: Path,
    wanted: bytes,
    first: int | None,
    then: int | None,
    deadline: float | None,
) -> None:
    output = f"stopped-{first}-{then}-{deadline}.jsonl"
    signum = signal.SIGINT if deadline is None else DEADLINE
    watcher = Watcher(60, lambda: os.kill(os.getpid(), signum))
    with pytest.raises((JobInterrupted, KeyboardInterrupt)) as caught:
        demo_job(rows, output, first, watcher, deadline=deadline)
    if deadline is not None:
        assert isinstance(caught.value, JobInterrupted)
        assert exit_status(caught.value.signum) == 4
    done = (rows / output).read_bytes().count(b"\n")
    assert 60 <= done < wanted.count(b"\n")
    result, found = demo_job(rows, output, then, resume=True)
    assert found == wanted
    assert result.report["rows"]["skipped"] >= 60


def test_a_deadline_that_does_not_come_changes_no_byte(
    cluster: RayCluster, rows: Path, wanted: bytes
) -> None:
    """Rows run in an order that is drawn."""
    _, found = demo_job(rows, "in-time.jsonl", 2, deadline=HOUR)
    assert found == comparable_bytes(rows / "one.jsonl")
