"""A resumed job of texts: what is done is neither encoded nor computed again, and is counted."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

from pagedrun.paged.execution.pooling.texts import PooledTextEncoder
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.output.vector_files import VectorFile
from pagedrun.paged.values.engine_config import WindowSize
from tests.job.pooled.pooled_jobs import read, run, write

NUM_ROWS, WINDOW = 14, 4


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Input of several windows; the last row has no text."""
    path = tmp_path / "texts.jsonl"
    rows: list[dict[str, Any]] = [{"id": i, "text": f"w{i} w1"} for i in range(NUM_ROWS)]
    write(path, [*rows[:-1], {"id": "none"}])
    monkeypatch.setattr("pagedrun.paged.job.config.TEXT_WINDOW", WindowSize(rows=WINDOW))
    return path


class Encoded:
    """Rows that are encoded; with `breaks` the encoder fails at that row, as at a bug of ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, breaks: int = -1) -> None:
        self.indices: list[int] = []
        whole = PooledTextEncoder.requests

        def requests(encoder: PooledTextEncoder, indices: Sequence[int], rows: Any) -> Any:
            self.indices += indices
            if breaks in indices:
                raise OSError("the disk is gone")
            return whole(encoder, indices, rows)

        monkeypatch.setattr(PooledTextEncoder, "requests", requests)


def drop(output: Path, *indices: int) -> None:
    """Remove the lines of some rows."""
    lines = output.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["index"] not in indices]
    output.write_bytes(b"".join(kept))


def test_rows_of_later_windows_are_not_encoded_again(
    texts: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    for output in (whole, cut):
        run(capsys, "embed", texts, "-o", output, "--model", model, status=3)
    drop(cut, 5, 11)
    encoded = Encoded(monkeypatch)
    run(capsys, "embed", texts, "-o", cut, "--model", model, "--resume", status=3)
    # The first window is encoded before it is known whether the output is of the same job.
    assert encoded.indices == [*range(WINDOW), 5, 11]
    by_index = {row["index"]: row for row in read(cut)}
    assert by_index == {row["index"]: row for row in read(whole)}
    assert len(read(cut)) == NUM_ROWS


def test_the_last_window_makes_the_total_known(
    texts: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And rows that wait for their vectors to be synced are saved before the command ends."""
    output = tmp_path / "vectors.npy"
    whole = VectorFile.write

    def write_some(file: VectorFile, index: int, vector: Any) -> None:
        if index == NUM_ROWS - 2:  # in the last window
            raise OutputError("the disk is gone", OSError())
        whole(file, index, vector)

    monkeypatch.setattr(VectorFile, "write", write_some)
    told = run(capsys, "embed", texts, "-o", output, "--model", model, status=4)
    num_saved = len(read(tmp_path / "vectors.npy.journal.jsonl"))
    assert f"{num_saved} of {NUM_ROWS} rows saved; continue with --resume" in told
    assert num_saved >= NUM_ROWS - WINDOW


def test_rows_beyond_what_is_read_count_as_saved(
    texts: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "vectors.jsonl"
    run(capsys, "embed", texts, "-o", output, "--model", model, status=3)
    drop(output, 0, 6)
    Encoded(monkeypatch, breaks=6)
    told = run(capsys, "embed", texts, "-o", output, "--model", model, "--resume", status=1)
    assert f"{NUM_ROWS - 1} of at least {NUM_ROWS - 1} rows saved; continue with --resume" in told


@pytest.mark.parametrize("ending", ["npy", "parquet"])
@pytest.mark.parametrize("is_finished", [False, True])
def test_vectors_that_were_changed_are_refused(
    ending: str,
    is_finished: bool,
    texts: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the line of their row, and an array also as a file that its run finished."""
    output, array = tmp_path / f"out.{ending}", tmp_path / f"out.{ending}.vectors.npy"
    command = "embed", texts, "-o", output, "--model", model
    run(capsys, *command, status=3)
    whole = output.read_bytes()
    is_final = is_finished and ending == "npy"
    if ending == "npy" and not is_finished:  # as a killed run leaves it
        output.rename(array)
    changed = output if is_final else array
    numbers = numpy.load(changed, mmap_mode="r+")
    numbers[5, 3] += 0.25
    numbers.flush()
    told = run(capsys, *command, "--resume", "--retry-errors", status=2)
    if is_final:
        assert f"{output} has changed since its run wrote it" in told
        assert numpy.array_equal(numpy.load(output), numbers, equal_nan=True)
    else:
        journal = tmp_path / f"out.{ending}.journal.jsonl"
        [number] = [at for at, row in enumerate(read(journal), 1) if row["index"] == 5]
        assert f"written for line {number} of {journal}" in told
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([*lines[: number - 1], *lines[number:]]))
        run(capsys, *command, "--resume", status=3)
        assert output.read_bytes() == whole


@pytest.mark.parametrize("how", ["edited", "cut"])
def test_a_finished_array_that_was_changed_is_refused(
    how: str, rows: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.npy"
    command = "embed", rows, "-o", output, "--model", model
    run(capsys, *command)
    numbers = numpy.load(output)
    numbers[2] *= 2
    numpy.save(output, numbers if how == "edited" else numbers[:4])
    before = output.read_bytes()
    told = run(capsys, *command, "--resume", status=2)
    assert f"{output} has changed since its run wrote it" in told
    assert output.read_bytes() == before
