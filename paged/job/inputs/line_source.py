"""LineSource: rows that are lines of text, JSON objects or prompts as they are."""

import hashlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pagedrun.paged.job.inputs.counted_stream import CountedStream
from pagedrun.paged.job.inputs.foreign_format import refuse_foreign
from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.json_line import parse_object
from pagedrun.paged.job.inputs.lines import Line, LineReader
from pagedrun.paged.job.inputs.row import Columns, Row, default_id, with_columns
from pagedrun.paged.job.inputs.row_source import InputFacts, refuse_empty
from pagedrun.paged.values.errors import RowError


def prompt_line(text: str) -> Columns:
    """Return the columns of a line that is a prompt."""
    return {"prompt": text}


class LineSource:
    """The rows of a stream of lines, blank ones skipped; implements `RowSource`.

    `name` is used in messages; `parse` makes columns of a line. `packed` is the stream below, if
    `stream` is unpacked from one: the digest is of its bytes. `can_drain` is false for pipes.
    Raises `UsageError` where the stream as a whole is not UTF-8 text, or holds no row at all.
    """

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        max_line_bytes: int,
        *,
        parse: Callable[[str], Columns] = parse_object,
        packed: CountedStream | None = None,
        can_drain: bool = True,
    ) -> None:
        self.facts = InputFacts()
        self.lines = LineReader(stream, max_line_bytes)
        self._name = name
        self._max_line_bytes = max_line_bytes
        self._parse = parse
        self._bytes = packed or self.lines
        self._can_drain = can_drain

    @property
    def is_json(self) -> bool:
        """Whether each line is a JSON object."""
        return self._parse is parse_object

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the lines so far."""
        return self.lines.num_bytes

    def __iter__(self) -> Iterator[Row]:
        index = 0
        for line in self.lines:
            if line.is_blank:
                continue
            if index == 0:
                refuse_foreign(self._name, line.data or b"")
            yield self._row(index, line)
            index += 1
        if index == 0:
            raise refuse_empty(self._name)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return size and SHA-256 of the bytes read so far."""
        return InputDigest(self._bytes.num_bytes, self._bytes.sha256, whole)

    def drain(self) -> bool:
        """Read to the end of the file."""
        if self._can_drain:
            self._bytes.drain()
        return self._can_drain

    def _row(self, index: int, line: Line) -> Row:
        digest = hashlib.sha256(line.data or b"").digest()
        row = Row(index, line.number, line.byte_offset, digest, default_id(index))
        return with_columns(row, lambda: self._parse(self._text(line)))

    def _text(self, line: Line) -> str:
        if line.data is None:
            raise RowError("line_too_long", f"the line is longer than {self._max_line_bytes} bytes")
        return utf8_text(line.data, line.byte_offset)


def utf8_text(data: bytes, byte_offset: int) -> str:
    """Return the text at `byte_offset`; `RowError` if it is not valid UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError(
            "invalid_utf8", f"byte {byte_offset + error.start} of the input is not valid UTF-8"
        ) from error
