"""Resuming an output whose lines have changed since they were written."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, parquet

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output.line_digests import line_digest
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.request import Completion, Request
from tests.support.manifests import as_if_killed, change_manifest
from tests.support.scripted_model import Answer, ScriptedModel, config_for, echo

ROWS = [{"id": f"own-{i}", "prompt": "abcdefgh"[i] * 3} for i in range(8)]
Lines = list[Any]
Change = Callable[[Lines], object]


class Heard(JobListener):
    """Listener that keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def job(folder: Path, answer: Answer = echo, **changes: Any) -> JobConfig:
    """Return a job whose output has all rows."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    config = config_for(folder, ROWS, **changes)
    run_job(config, None, ScriptedModel(answer).open())
    return config


def rewrite(path: Path, change: Change) -> None:
    """Change the rows of an output, each in its line."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(rows)
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def resumed(config: JobConfig) -> list[str]:
    """Resume a job; return its warnings, except that of invalid rows."""
    heard = Heard()
    run_job(replace(config, resume=True), heard, ScriptedModel().open())
    return [each for each in heard.warnings if " are invalid" not in each]


def swap_indices(rows: Lines) -> None:
    rows[2]["index"], rows[5]["index"] = rows[5]["index"], rows[2]["index"]


def swap_rows(rows: Lines) -> None:
    for name in ("index", "id"):
        rows[2][name], rows[5][name] = rows[5][name], rows[2][name]


def edit(place: int) -> Change:
    return lambda rows: rows[place]["outputs"][0].update(text="forged")


def move_beyond(rows: Lines) -> None:
    rows[3]["index"] = len(ROWS)


CHANGES = {
    "two indices swapped": (swap_indices, 3),
    "two rows under each other's names": (swap_rows, 3),
    "a text edited": (edit(4), 5),
    "the first text edited": (edit(0), 1),
    "a row beyond the end": (move_beyond, 4),
    "the last text edited": (edit(7), 8),
    "an answer made an error": (lambda rows: rows[3].update(error={"code": "x"}), 4),
    "the last answer made an error": (lambda rows: rows[7].update(error={"code": "x"}), 8),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_line_is_refused_by_its_number(name: str, tmp_path: Path) -> None:
    config = job(tmp_path)
    output = Path(config.output)
    how, number = CHANGES[name]
    rewrite(output, how)
    before = output.read_bytes()
    with pytest.raises(UsageError, match=rf"line {number} "):
        resumed(config)
    assert output.read_bytes() == before


def test_a_line_put_before_recorded_ones_is_refused(tmp_path: Path) -> None:
    """All recorded lines of a killed run are there, and would be computed again."""
    config = job(tmp_path)
    output, digests = Path(config.output), Path(f"{config.output}.digests")
    as_if_killed(Path(f"{config.output}.run.json"))
    digests.write_bytes(digests.read_bytes()[: -2 * 32])
    lines = output.read_bytes().splitlines(keepends=True)[:-2]
    forged = lines[0].replace(json.loads(lines[0])["id"].encode(), b"own-0")
    lines.insert(3, forged.replace(b'"index":7', b'"index":0'))
    output.write_bytes(b"".join(lines))
    with pytest.raises(UsageError, match="line 4 is not the line that its run wrote"):
        resumed(config)
    assert output.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("how", [swap_indices, move_beyond])
@pytest.mark.parametrize("window", [None, 3], ids=["one window", "windows"])
def test_without_digests_ids_and_bounds_are_checked(
    how: Change, window: int | None, tmp_path: Path
) -> None:
    size: dict[str, Any] = (
        {} if window is None else {"window": WindowSize(rows=window, num_bytes=2**20)}
    )
    config = job(tmp_path, **size)
    as_if_killed(Path(f"{config.output}.run.json"))
    Path(f"{config.output}.digests").unlink()
    rewrite(Path(config.output), how)
    with pytest.raises(UsageError, match=r"line \d answers row"):
        resumed(config)


def test_a_journal_is_checked_too(tmp_path: Path) -> None:
    failing = [*ROWS, {"id": "bad", "prompt": 5}]  # keeps the journal
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in failing))
    config = job(tmp_path, output=str(tmp_path / "out.csv"))
    journal = Path(f"{config.output}.journal.jsonl")
    good = journal.read_bytes()
    rewrite(journal, edit(4))
    with pytest.raises(UsageError, match=r"line \d+ is not the line that its run wrote"):
        resumed(config)
    journal.write_bytes(good)
    resumed(config)
    assert "forged" not in Path(config.output).read_text()


def test_digests_of_a_journal_leave_with_it(tmp_path: Path) -> None:
    config = job(tmp_path, output=str(tmp_path / "out.csv"))
    assert [path.name for path in tmp_path.glob("*journal*")] == []
    assert resumed(config) == []
    assert [path.name for path in tmp_path.glob("*journal*")] == []


@pytest.mark.parametrize("num_lost", [1, 3])
def test_rows_that_were_not_recorded_are_computed_again(num_lost: int, tmp_path: Path) -> None:
    """A killed run, or a power failure: the last records are missing."""
    config = job(tmp_path)
    output, digests = Path(config.output), Path(f"{config.output}.digests")
    whole = output.read_bytes()
    digests.write_bytes(digests.read_bytes()[: -32 * num_lost + 5])
    [warning] = resumed(config)
    assert f"the last {num_lost} lines" in warning
    assert output.read_bytes() == whole
    assert len(digests.read_bytes()) == 32 * len(ROWS)
    assert resumed(config) == []


def test_missing_digests_of_an_unchanged_output_are_written_again(tmp_path: Path) -> None:
    """The manifest has the sum of its lines, in any order."""
    config = job(tmp_path, ordered=True)
    whole, digests = Path(config.output).read_bytes(), Path(f"{config.output}.digests")
    digests.unlink()
    assert resumed(config) == []
    assert Path(config.output).read_bytes() == whole
    rewrite(Path(config.output), edit(4))
    with pytest.raises(UsageError, match="line 5 "):
        resumed(config)


@pytest.mark.parametrize("how", [edit(4), edit(7), lambda rows: rows.pop(3)])
def test_without_digests_a_changed_output_is_refused(how: Change, tmp_path: Path) -> None:
    config = job(tmp_path)
    Path(f"{config.output}.digests").unlink()
    rewrite(Path(config.output), how)
    before = Path(config.output).read_bytes()
    with pytest.raises(UsageError, match=r"has changed since its run wrote it.*put either file"):
        resumed(config)
    assert Path(config.output).read_bytes() == before


def test_missing_digests_of_a_killed_run_are_a_warning(tmp_path: Path) -> None:
    config = job(tmp_path)
    as_if_killed(Path(f"{config.output}.run.json"))
    whole = Path(config.output).read_bytes()
    Path(f"{config.output}.digests").unlink()
    [warning] = resumed(config)
    assert "cannot be noticed" in warning
    assert Path(config.output).read_bytes() == whole


FAILING = [*ROWS, {"id": "bad", "prompt": 5}, {"id": "worse", "prompt": 6}]


@pytest.fixture
def failed(tmp_path: Path) -> JobConfig:
    """A job with two errors, in the first lines of its output."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FAILING))
    return job(tmp_path)


def as_if_of_version_0_2(config: JobConfig) -> None:
    """Remove the records of errors and the sum of lines."""
    change_manifest(Path(f"{config.output}.run.json"), lambda each: each.pop("lines"))
    digests = Path(f"{config.output}.digests")
    lines = Path(config.output).read_bytes().splitlines(keepends=True)
    errors = {line_digest(line) for line in lines if b'"error":{' in line}
    assert len(errors) == 2
    data = digests.read_bytes()
    records = [data[place : place + 32] for place in range(0, len(data), 32)]
    digests.write_bytes(b"".join(each for each in records if each[:16] not in errors))


@pytest.mark.parametrize("again", [False, True])
def test_a_changed_error_is_refused(again: bool, failed: JobConfig) -> None:
    output = Path(failed.output)
    rewrite(output, lambda rows: rows[1].update(id="bad"))
    before = output.read_bytes()
    with pytest.raises(UsageError, match=r"line 2 .*remove it: its row is then computed again"):
        resumed(replace(failed, retry_errors=again))
    assert output.read_bytes() == before
    output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[::9]))
    resumed(failed)
    assert sorted(json.loads(line)["index"] for line in output.open()) == list(range(10))


def test_errors_that_an_older_version_did_not_record_are_kept(failed: JobConfig) -> None:
    as_if_of_version_0_2(failed)
    whole = Path(failed.output).read_bytes()
    assert resumed(failed) == []
    assert Path(failed.output).read_bytes() == whole
    rewrite(Path(failed.output), lambda rows: rows[0]["error"].update(code="x"))
    with pytest.raises(UsageError, match="line 1 "):
        resumed(failed)


def test_errors_tried_again_leave_no_record(tmp_path: Path) -> None:
    """Later the last line of a killed run would look like a changed one."""

    def refuse(request: Request) -> Completion:
        if request.index == 3:
            return Completion(request, (), 0, RowError("nan_logits", "the output has NaN"))
        return echo(request)

    config = job(tmp_path, refuse)
    assert b"nan_logits" in Path(config.output).read_bytes()
    resumed(replace(config, retry_errors=True))
    whole, digests = Path(config.output).read_bytes(), Path(f"{config.output}.digests")
    records = digests.read_bytes()
    lines = [line_digest(line) for line in whole.splitlines(keepends=True)]
    assert [records[place : place + 16] for place in range(0, len(records), 32)] == lines
    digests.write_bytes(records[:-32])
    [warning] = resumed(config)
    assert "the last 1 lines" in warning
    assert Path(config.output).read_bytes() == whole


def change_table(path: Path, num_rows: int = len(ROWS)) -> None:
    """Write a table as another program does, with an edited value."""
    is_csv = path.suffix == ".csv"
    table = csv.read_csv(path) if is_csv else parquet.read_table(path)
    column = table.column_names.index("answer")
    answers = table["answer"].to_pylist()
    answers[4] = "forged"
    table = table.set_column(column, "answer", pyarrow.array(answers))[:num_rows]
    csv.write_csv(table, path) if is_csv else parquet.write_table(table, path)


def drop_rows(path: Path) -> None:
    change_table(path, 4)


def forge_lines(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"eee!", b"forged")))


FILES = {
    "csv edited": ("out.csv", change_table),
    "csv cut": ("out.csv", drop_rows),
    "parquet edited": ("out.parquet", change_table),
    "parquet cut": ("out.parquet", drop_rows),
    "lines edited": ("out.jsonl.gz", forge_lines),
}


@pytest.mark.parametrize("name", FILES)
def test_a_finished_file_that_was_changed_is_refused(name: str, tmp_path: Path) -> None:
    ending, how = FILES[name]
    config = job(tmp_path, output=str(tmp_path / ending))
    path = Path(config.output)
    whole = path.read_bytes()
    how(path)
    before = path.read_bytes()
    assert before != whole
    with pytest.raises(UsageError, match=f"{path} has changed since .*overwrite"):
        resumed(config)
    assert path.read_bytes() == before
    path.write_bytes(whole)
    assert resumed(config) == []
    assert path.read_bytes() == whole


def test_a_changed_file_beside_its_journal_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FAILING))
    config = job(tmp_path, output=str(tmp_path / "out.csv"))
    path = Path(config.output)
    whole = path.read_bytes()
    sums = json.loads(Path(f"{path}.run.json").read_bytes())["files"]
    assert sums == {"out.csv": {"num_bytes": len(whole), "sha256": sha256(whole).hexdigest()}}
    change_table(path)
    before = path.read_bytes()
    for again in (False, True):
        with pytest.raises(UsageError, match=r"written again from .*journal"):
            resumed(replace(config, retry_errors=again))
        assert path.read_bytes() == before
    path.unlink()
    resumed(config)
    assert path.read_bytes() == whole


def test_lines_that_are_taken_out_are_computed_again(tmp_path: Path) -> None:
    config = job(tmp_path)
    output = Path(config.output)
    whole = output.read_bytes()
    rewrite(output, lambda rows: rows.__delitem__(slice(2, 4)))
    assert resumed(config) == []
    assert sorted(output.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_ids_of_any_kind_are_found_again(tmp_path: Path) -> None:
    """Numbers, a lone surrogate (written as a question mark), ids that are refused."""
    rows = [
        {"id": 5, "prompt": "a"},
        {"id": "\ud800x", "prompt": "b"},
        {"prompt": "c"},
        {"id": 1.5, "prompt": "d"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = job(tmp_path)
    whole = Path(config.output).read_bytes()
    resumed(config)
    assert Path(config.output).read_bytes() == whole
