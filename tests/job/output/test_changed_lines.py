"""Resuming an output whose lines have changed since they were written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import UsageError
from tests.support.scripted_model import ScriptedModel, config_for

ROWS = [{"id": f"own-{i}", "prompt": "abcdefgh"[i] * 3} for i in range(8)]
Lines = list[Any]
Change = Callable[[Lines], object]


class Heard(JobListener):
    """Listener that keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def job(folder: Path, **changes: Any) -> JobConfig:
    """Return a job whose output has all rows."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    config = config_for(folder, ROWS, **changes)
    run_job(config, None, ScriptedModel().open())
    return config


def rewrite(path: Path, change: Change) -> None:
    """Change the rows of an output, each in its line."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(rows)
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def resumed(config: JobConfig) -> list[str]:
    """Resume a job; return its warnings."""
    heard = Heard()
    run_job(replace(config, resume=True), heard, ScriptedModel().open())
    return heard.warnings


def swap_indices(rows: Lines) -> None:
    rows[2]["index"], rows[5]["index"] = rows[5]["index"], rows[2]["index"]


def swap_rows(rows: Lines) -> None:
    for name in ("index", "id"):
        rows[2][name], rows[5][name] = rows[5][name], rows[2][name]


def edit(place: int) -> Change:
    return lambda rows: rows[place]["outputs"][0].update(text="forged")


def move_beyond(rows: Lines) -> None:
    rows[3]["index"] = 999_999


CHANGES = {
    "two indices swapped": (swap_indices, 3),
    "two rows under each other's names": (swap_rows, 3),
    "a text edited": (edit(4), 5),
    "the first text edited": (edit(0), 1),
    "a row beyond the end": (move_beyond, 4),
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


@pytest.mark.parametrize("how", [swap_indices, move_beyond])
@pytest.mark.parametrize("window", [None, 3], ids=["one window", "windows"])
def test_without_digests_ids_and_bounds_are_checked(
    how: Change, window: int | None, tmp_path: Path
) -> None:
    size = {} if window is None else {"window": WindowSize(rows=window, num_bytes=2**20)}
    config = job(tmp_path, **size)
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


def test_an_edited_last_line_is_computed_again(tmp_path: Path) -> None:
    """It looks like one that was not recorded."""
    config = job(tmp_path)
    output = Path(config.output)
    whole = output.read_bytes()
    rewrite(output, edit(7))
    [warning] = resumed(config)
    assert "the last 1 lines" in warning
    assert output.read_bytes() == whole


def test_missing_digests_are_a_warning(tmp_path: Path) -> None:
    config = job(tmp_path)
    whole = Path(config.output).read_bytes()
    Path(f"{config.output}.digests").unlink()
    [warning] = resumed(config)
    assert "cannot be noticed" in warning
    assert Path(config.output).read_bytes() == whole


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
