"""A power cut keeps no journal line without its vector, whatever of the rest it keeps."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import VECTORS_SUFFIX
from pagedrun.paged.job.output import output_file, vector_files, writer
from tests.job.pooled.pooled_jobs import run


class RecordingOs:
    """The `os` module, with the order of writes and syncs of a job's files.

    A disk may keep a line as soon as it is written, and a vector is sure to be kept when its file
    was synced after it: `lost` are lines of rows whose vectors were not.
    """

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.num_lines = 0
        self._vectors = -1
        self._written: list[int] = []  # offsets
        self._kept: set[int] = set()
        self._offset_of: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, *args: Any, **more: Any) -> int:
        descriptor = os.open(path, *args, **more)
        if str(path).endswith(VECTORS_SUFFIX):
            self._vectors = descriptor
        return descriptor

    def pwrite(self, descriptor: int, data: bytes, place: int) -> int:
        self._written.append(place)
        return os.pwrite(descriptor, data, place)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        if descriptor == self._vectors:
            self._kept.update(self._written)

    def write(self, descriptor: int, data: bytes) -> int:
        for line in data.splitlines():
            row = json.loads(line)
            self.num_lines += 1
            if row["error"] is None and HEADER + 4 * SIZE * row["index"] not in self._kept:
                self.lost.append(row["index"])
        return os.write(descriptor, data)


HEADER, SIZE = 128, 64


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_line_is_written_after_its_vector_was_synced(
    ending: str,
    model: Path,
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rows.open("a") as file:
        file.write('{"id": "none"}\n')
    recording = RecordingOs()
    monkeypatch.setattr(vector_files, "os", recording)
    monkeypatch.setattr(output_file, "os", recording)
    monkeypatch.setattr(writer, "SYNC_ROWS", 2)
    out = tmp_path / f"v.{ending}"
    run(capsys, "embed", rows, "-o", out, "--model", model, status=3)
    assert recording.num_lines == 7
    assert recording.lost == []
