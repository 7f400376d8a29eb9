"""Rows of line-based inputs: JSON objects or plain prompts.

Lines end at the newline byte only. Text mode and `splitlines()` also split at a lone carriage
return, U+2028 and U+0085, which may occur inside a JSON string.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pagedrun.paged.job.inputs.byte_streams import CHUNK_BYTES, CountedStream
from pagedrun.paged.job.inputs.json_line import parse_record
from pagedrun.paged.job.inputs.row import (
    InputDigest,
    InputFacts,
    Record,
    Row,
    default_id,
    refuse_empty,
    with_record,
)
from pagedrun.paged.values.errors import RowError, UsageError, option


def prompt_line(text: str) -> Record:
    """Return the record of a plain prompt."""
    return Record({"prompt": text})


@dataclass(frozen=True, slots=True)
class Line:
    """Physical line without its end; `data` is None if it was longer than the limit."""

    number: int  # from 1
    byte_offset: int  # of the line's first byte, after a byte order mark
    data: bytes | None

    @property
    def is_blank(self) -> bool:
        """True if the line holds only JSON white space."""
        return self.data is not None and not self.data.strip(JSON_BLANKS)


class ByteSource:
    """Digest and size of an input read as bytes.

    `packed` is the compressed stream below `stream`, if any: the digest is of its bytes.
    `can_drain` is false for pipes.
    """

    def __init__(
        self, stream: CountedStream, packed: CountedStream | None, *, can_drain: bool
    ) -> None:
        self.facts = InputFacts()
        self._stream = stream
        self._bytes = packed or stream
        self._can_drain = can_drain

    @property
    def num_bytes_read(self) -> int:
        """Decompressed bytes read so far."""
        return self._stream.num_bytes

    def digest(self, *, whole: bool) -> InputDigest:
        """Return size and SHA-256 of the bytes read so far."""
        return InputDigest(self._bytes.num_bytes, self._bytes.sha256, whole)

    def drain(self) -> bool:
        """Read to the end of the file."""
        if self._can_drain:
            self._bytes.drain()
        return self._can_drain


class LineSource(ByteSource):
    """Rows of a stream of lines, blank ones skipped; implements `RowSource`.

    `name` is used in messages; `parse` returns the record of a line. Raises `UsageError` if the
    stream as a whole is not UTF-8 text or holds no row.
    """

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        max_line_bytes: int,
        *,
        parse: Callable[[str], Record] = parse_record,
        packed: CountedStream | None = None,
        can_drain: bool = True,
    ) -> None:
        self.lines = LineReader(stream, max_line_bytes)
        super().__init__(self.lines, packed, can_drain=can_drain)
        self._name = name
        self._max_line_bytes = max_line_bytes
        self._parse = parse

    @property
    def is_json(self) -> bool:
        """True if each line is a JSON object."""
        return self._parse is parse_record

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

    def _row(self, index: int, line: Line) -> Row:
        digest = hashlib.sha256(line.data or b"").digest()
        row = Row(index, line.number, line.byte_offset, digest, default_id(index))
        return with_record(row, lambda: self._parse(self._text(line)))

    def _text(self, line: Line) -> str:
        if line.data is None:
            raise RowError("line_too_long", f"the line is longer than {self._max_line_bytes} bytes")
        return utf8_text(line.data, line.byte_offset)


def utf8_text(data: bytes, byte_offset: int) -> str:
    """Return the text at `byte_offset`; `RowError` if it is not valid UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte {byte_offset + error.start} of the input is"
        raise RowError("invalid_utf8", f"{place} {not_utf8()}") from error


def not_utf8() -> str:
    """Return the end of a message on bytes that are no text."""
    return (
        f"not valid UTF-8; pass {option('encoding')} with the encoding of the file, such as cp1252"
    )


BOM = b"\xef\xbb\xbf"
JSON_BLANKS = b" \t\r\n"


class LineReader(CountedStream):
    """Lines of `stream`, with size and SHA-256 of the bytes read so far.

    A line longer than `max_line_bytes` is skipped in constant memory. One carriage return before
    the newline and one byte order mark at the start are dropped.
    """

    def __init__(self, stream: BinaryIO, max_line_bytes: int) -> None:
        super().__init__(stream)
        self._max_line_bytes = max_line_bytes

    def __iter__(self) -> Iterator[Line]:
        number = 0
        while True:
            offset = self.num_bytes
            # Room for a byte order mark and "\r\n", so that the limit counts only the text.
            data = self.readline(self._max_line_bytes + len(BOM) + 2)
            if not data:
                return
            number += 1
            if number == 1 and data.startswith(BOM):
                data = data[len(BOM) :]
                offset += len(BOM)
            ended = data.endswith(b"\n")
            text = _without_end(data)
            if len(text) > self._max_line_bytes:
                while not ended:
                    data = self.readline(CHUNK_BYTES)
                    ended = not data or data.endswith(b"\n")
                yield Line(number, offset, None)
            else:
                yield Line(number, offset, text)


def _without_end(data: bytes) -> bytes:
    if data.endswith(b"\n"):
        data = data[:-1]
    return data.removesuffix(b"\r")


FIRST_BYTES = 8
_FOREIGN = {  # first bytes of files often given by mistake
    b"\x1f\x8b": "compressed with gzip; let its name end in .gz, or unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstandard; let its name end in .zst, or unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; let its name end in .parquet",
}
_UTF16_MARKS = {b"\xff\xfe": "le", b"\xfe\xff": "be"}


def refuse_foreign(name: str, first_bytes: bytes) -> None:
    """Raise `UsageError` if the text input `name` begins like another format."""
    for magic, what in _FOREIGN.items():
        if first_bytes.startswith(magic):
            raise UsageError(f"{name} is {what}")
    order = _utf16_order(first_bytes[:FIRST_BYTES])
    if order is not None:
        raise UsageError(
            f"{name} is UTF-16 text; pass {option('encoding')} utf-16-{order}", field="encoding"
        )


def _utf16_order(start: bytes) -> str | None:
    """Return the byte order of UTF-16 text by its first bytes, None for another text."""
    if start[:2] in _UTF16_MARKS:
        return _UTF16_MARKS[start[:2]]
    for order, zeros, others in (
        ("le", start[1::2], start[::2]),
        ("be", start[::2], start[1::2]),
    ):
        # Without a byte order mark: in UTF-16, every second byte of ASCII and of a line's end is
        # zero. One zero among letters may be text.
        has_seen_enough = len(zeros) > 1 or start == b"\0"
        if has_seen_enough and not any(zeros) and all(others):
            return order
    return None
