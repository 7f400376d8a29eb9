"""Inputs longer than a window: the same rows come out, and no more than a window is held."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.inputs.reader import open_rows
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.prepare import RowWindows
from pagedrun.paged.values.engine_config import EngineConfig, WindowSize
from tests.conftest import MakeModel
from tests.support.jsonl import jsonl, read_jsonl, write_jsonl


def config_of(path: Path, **changes: Any) -> JobConfig:
    engine = EngineConfig(model=path.parent)
    return JobConfig(
        input=str(path), output=str(path.parent / "out.jsonl"), engine=engine, **changes
    )


@pytest.mark.parametrize("limit", [None, 1, 5, 9, 10, 11, 100])
@pytest.mark.parametrize("window_rows", [1, 3, 5, 10, 100])
def test_every_row_is_in_one_window(limit: int | None, window_rows: int, tmp_path: Path) -> None:
    data = jsonl([{"prompt": str(i)} for i in range(10)])
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with open_rows(str(path)) as source:
        config = config_of(path, limit=limit, window=WindowSize(rows=window_rows))
        reader = RowWindows(source, config)
        sizes, indices = [], []
        while not reader.is_last:
            rows = reader.read()
            sizes.append(len(rows))
            indices += [row.index for row in rows]
        digest = reader.digest()
    total = min(10, limit or 10)
    assert indices == list(range(total))
    assert (
        sizes
        == [window_rows] * (total // window_rows) + [total % window_rows][: total % window_rows]
    )
    assert digest.whole
    assert (digest.num_bytes, digest.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_window_ends_by_its_bytes_too(tmp_path: Path) -> None:
    data = jsonl([{"prompt": "x" * 20} for _ in range(7)])
    source = LineSource(io.BytesIO(data), "in", 1000)
    config = config_of(tmp_path / "in.jsonl", window=WindowSize(num_bytes=50))
    reader = RowWindows(source, config)
    sizes = []
    while not reader.is_last:
        sizes.append(len(reader.read()))
    assert sum(sizes) == 7
    assert max(sizes) < 3


Rows = list[dict[str, Any]]


@pytest.fixture
def answer(make_model: MakeModel, tmp_path: Path) -> Callable[..., tuple[JobResult, Rows]]:
    folder = make_model("qwen3", "windows")

    def run(rows: list[Any], window_rows: int, **engine: Any) -> tuple[JobResult, Rows]:
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        write_jsonl(source, rows)
        config = JobConfig(
            input=str(source),
            output=str(output),
            engine=EngineConfig(model=folder, **engine),
            window=WindowSize(rows=window_rows),
            ordered=True,
            overwrite=True,
        )
        result = run_job(config)
        return result, read_jsonl(output)

    return run


HEAD = list(range(40))


def rows_of(count: int) -> list[Any]:
    return [
        {"prompt_token_ids": [*HEAD, 100 + i // 2, i % 3], "max_tokens": 3 + i % 5}
        for i in range(count)
    ]


@pytest.mark.parametrize("window_rows", [1, 4, 7])
def test_windows_change_no_answer(
    window_rows: int, answer: Callable[..., tuple[JobResult, Rows]]
) -> None:
    rows = rows_of(20)
    rows[13] = {"prompt": ["no text"]}
    _, expected = answer(rows, 100)
    result, got = answer(rows, window_rows, max_num_seqs=3, num_blocks=30)
    assert result.report["rows"] == {"total": 20, "ok": 19, "failed": 1, "skipped": 0}
    for row in [*expected, *got]:
        del row["usage"]["cached_tokens"]
    assert got == expected


def test_a_prefix_lives_on_across_windows(answer: Callable[..., tuple[JobResult, Rows]]) -> None:
    """Two whole blocks are shared by all rows: each window finds them."""
    result, _ = answer(rows_of(12), 3, max_num_seqs=2, num_blocks=20)
    assert result.report["prefix"]["hit_tokens"] >= 11 * 32
    tokens = result.report["tokens"]
    assert tokens["prompt"] == 12 * 42 == tokens["cached"] + tokens["computed"]


def test_a_later_window_begins_before_the_first_is_done(
    answer: Callable[..., tuple[JobResult, Rows]],
) -> None:
    """One long answer in the first window does not keep the second one waiting."""
    rows = rows_of(6)
    rows[0] = {"prompt_token_ids": [7], "max_tokens": 40, "ignore_eos": True}
    result, _ = answer(rows, 3, max_num_seqs=3)
    assert len(result.report["timeline"]) <= 42  # the steps of the long one, and little more


def test_an_id_repeated_in_a_later_window_fails_its_row(
    answer: Callable[..., tuple[JobResult, Rows]],
) -> None:
    rows = [{"id": name, "prompt_token_ids": [5, 6], "max_tokens": 2} for name in "abcb"]
    result, got = answer(rows, 2)
    assert result.num_failed == 1
    assert got[3]["error"]["code"] == "duplicate_id"
    assert "line 2" in got[3]["error"]["message"]
