"""Rows of a JSONL input. What a line holds never stops the run: a bad one is a failed row."""

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from pagedrun.paged.errors import RowError, UsageError
from pagedrun.paged.job.json_line import parse_object
from pagedrun.paged.job.lines import Line, LineReader
from pagedrun.paged.job.row import Row, at_line, default_id, row_id

STDIN = "-"
DEFAULT_MAX_LINE_BYTES = 64 * 2**20
SUFFIX = ".jsonl"
_NOT_JSONL = {  # first bytes of files that are often given by mistake
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstandard; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; this version reads JSONL only",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)",
    b"{\x00": "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16LE -t UTF-8)",
    b"\x00{": "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16BE -t UTF-8)",
}


def open_input(name: str) -> AbstractContextManager[BinaryIO]:
    """Open the input for reading bytes; `-` is standard input.

    Raises `UsageError` if there is no such file, it cannot be read, or it is not JSONL by name.
    Pipes and devices have no meaningful name and are taken as JSONL.
    """
    if name == STDIN:
        return nullcontext(sys.stdin.buffer)
    try:
        mode = os.stat(name).st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{name} is a folder; this version reads {SUFFIX} files only")
        if stat.S_ISREG(mode) and Path(name).suffix.lower() != SUFFIX:
            raise UsageError(
                f"{name}: this version reads {SUFFIX} files only; convert it to one JSON object "
                f"a line, or pass - and pipe JSONL in"
            )
        return open(name, "rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{name}: cannot be read ({reason}); check the path") from error


class JsonlReader:
    """The rows of a JSONL stream, blank lines skipped; `name` stands in messages.

    After iterating, `lines.num_bytes` and `lines.sha256` describe what was read. Raises
    `UsageError` where the stream as a whole is not JSONL in UTF-8, or holds no row at all.
    """

    def __init__(
        self, stream: BinaryIO, name: str, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    ) -> None:
        self.lines = LineReader(stream, max_line_bytes)
        self._name = name
        self._max_line_bytes = max_line_bytes

    def __iter__(self) -> Iterator[Row]:
        index = 0
        for line in self.lines:
            if line.number == 1:
                self._refuse_other_formats(line)
            if line.is_blank:
                continue
            yield self._row(index, line)
            index += 1
        if index == 0:
            raise UsageError(f"{self._name}: empty input, there is no row to answer")

    def _refuse_other_formats(self, line: Line) -> None:
        for magic, what in _NOT_JSONL.items():
            if line.data is not None and line.data.startswith(magic):
                raise UsageError(f"{self._name} is {what}")

    def _row(self, index: int, line: Line) -> Row:
        digest = hashlib.sha256(line.data or b"").digest()
        row = Row(index, line.number, line.byte_offset, digest, default_id(index))
        try:
            row = replace(row, columns=parse_object(self._text(line)))
            return replace(row, id=row_id(row.columns, index))
        except RowError as error:
            return replace(row, error=at_line(error, line.number))

    def _text(self, line: Line) -> str:
        if line.data is None:
            raise RowError("line_too_long", f"the line is longer than {self._max_line_bytes} bytes")
        try:
            return line.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RowError(
                "invalid_utf8",
                f"byte {line.byte_offset + error.start} of the input is not valid UTF-8",
            ) from error
