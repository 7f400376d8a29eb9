"""Rows of a JSON array, parsed one element at a time without holding the whole array."""

import hashlib
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from pagedrun.paged.job.inputs.byte_streams import CHUNK_BYTES, CountedStream
from pagedrun.paged.job.inputs.json_line import parse_record
from pagedrun.paged.job.inputs.line_source import (
    BOM,
    FIRST_BYTES,
    JSON_BLANKS,
    ByteSource,
    refuse_foreign,
    utf8_text,
)
from pagedrun.paged.job.inputs.row import (
    RECORD,
    Record,
    Row,
    default_id,
    refuse_empty,
    with_record,
)
from pagedrun.paged.values.errors import RowError, UsageError


@dataclass(frozen=True, slots=True)
class Element:
    """Element of the array; `data` is None if it is too long to hold."""

    number: int  # from 1
    byte_offset: int  # of its first byte that is not blank
    data: bytes | None


class ArraySource(ByteSource):
    """Rows of a JSON array, read piece by piece; implements `RowSource`.

    `name` is used in messages. An invalid element is yielded with its error; raises `UsageError`
    where the array itself is invalid.
    """

    def __init__(
        self,
        stream: CountedStream,
        name: str,
        max_record_bytes: int,
        packed: CountedStream | None = None,
        *,
        can_drain: bool = True,
    ) -> None:
        super().__init__(stream, packed, can_drain=can_drain)
        self._name = name
        self._max_record_bytes = max_record_bytes

    def __iter__(self) -> Iterator[Row]:
        index = -1
        elements = ArrayElements(self._stream, self._name, self._max_record_bytes)
        for index, element in enumerate(elements):
            yield self._row(index, element)
        if index < 0:
            raise refuse_empty(self._name)

    def _row(self, index: int, element: Element) -> Row:
        digest = hashlib.sha256(element.data or b"").digest()
        row = Row(
            index, element.number, element.byte_offset, digest, default_id(index), unit=RECORD
        )

        def read() -> Record:
            if element.data is None:
                raise RowError(
                    "line_too_long", f"the record is longer than {self._max_record_bytes} bytes"
                )
            return parse_record(utf8_text(element.data, element.byte_offset))

        return with_record(row, read)


# In UTF-8 these bytes are always these characters, so they are found without decoding.
_STRUCTURE = re.compile(rb'["\[\]{},]')
_IN_STRING = re.compile(rb'["\\]')
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")


class ArrayElements:
    """Iterates over the elements of the array in `stream`.

    Brackets are counted, not matched, and strings skipped: an element is validated when it is
    parsed. Raises `UsageError` if the stream is no array, or one that is not closed, has an empty
    element or text after its end.
    """

    def __init__(self, stream: CountedStream, name: str, max_bytes: int) -> None:
        self._stream = stream
        self._name = name
        self._max_bytes = max_bytes
        self._offset = 0  # of the next byte to read
        self._number = 0
        self._depth = 0  # of brackets; 1 is inside the array
        self._in_string = False
        self._is_escaped = False
        self._held: list[bytes] | None = []  # of this element; None once it is too long
        self._num_held = 0
        self._begin: int | None = None  # start of this element, None before its first byte

    def __iter__(self) -> Iterator[Element]:
        chunk = self._opened()
        while True:
            if self._depth == 0:
                self._refuse_rest(chunk)
                return
            if not chunk:
                raise UsageError(
                    f"{self._name}: the array is not closed, record {self._number + 1} or the "
                    "text after it is cut off; is the file complete?"
                )
            chunk = yield from self._cut(chunk)
            if self._depth:
                chunk = self._read()

    def _opened(self) -> bytes:
        """Read up to the opening bracket of the array, and return the bytes after it."""
        chunk = self._read(at_least=FIRST_BYTES)
        refuse_foreign(self._name, chunk)
        if chunk.startswith(BOM):
            chunk = chunk[len(BOM) :]
        while chunk and not chunk.strip(JSON_BLANKS):
            chunk = self._read()
        first = chunk.lstrip(JSON_BLANKS)
        if not first:
            raise UsageError(f"{self._name}: empty input, there is no row to answer")
        if not first.startswith(b"["):
            raise UsageError(
                f"{self._name} is not a JSON array of rows, since it does not begin with [; if "
                "it has one object per line, let its name end in .jsonl"
            )
        self._depth = 1
        return first[1:] or self._read()

    def _cut(self, chunk: bytes) -> Generator[Element, None, bytes]:
        """Yield the elements that end in `chunk`; return the bytes after the array."""
        base = self._offset - len(chunk)
        position = kept = 0
        while position < len(chunk):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            match = (_IN_STRING if self._in_string else _STRUCTURE).search(chunk, position)
            if match is None:
                break
            position = match.end()
            sign = match[0]
            if sign == b'"':
                self._in_string = not self._in_string
            elif sign == b"\\":
                self._is_escaped = True
            elif sign in b"[{":
                self._depth += 1
            elif sign != b",":
                self._depth -= 1
                if self._depth == 0:
                    self._hold(chunk[kept : position - 1], base + kept)
                    if self._begin is not None or self._number:
                        yield self._ended()
                    return chunk[position:]
            elif self._depth == 1:
                self._hold(chunk[kept : position - 1], base + kept)
                kept = position
                yield self._ended()
        self._hold(chunk[kept:], base + kept)
        return b""

    def _hold(self, data: bytes, offset: int) -> None:
        if self._begin is None:
            match = _NOT_BLANK.search(data)
            if match is None:
                return  # blanks before an element are not held
            self._begin = offset + match.start()
            data = data[match.start() :]
        if self._held is None:
            return
        self._num_held += len(data)
        if self._num_held > self._max_bytes + CHUNK_BYTES:  # blanks at the end do not count
            self._held = None
        else:
            self._held.append(data)

    def _ended(self) -> Element:
        self._number += 1
        if self._begin is None:
            raise UsageError(
                f"{self._name}: record {self._number} is empty: a comma is followed by a comma "
                "or by the end of the array; remove it"
            )
        data = b"".join(self._held).rstrip(JSON_BLANKS) if self._held is not None else None
        if data is not None and len(data) > self._max_bytes:
            data = None
        element = Element(self._number, self._begin, data)
        self._held, self._num_held, self._begin = [], 0, None
        return element

    def _refuse_rest(self, chunk: bytes) -> None:
        chunk = chunk or self._read()
        while chunk:
            if chunk.strip(JSON_BLANKS):
                raise UsageError(
                    f"{self._name}: there is text after the end of the array, after record "
                    f"{self._number}; if the file has one value per line, let its name end in "
                    ".jsonl"
                )
            chunk = self._read()

    def _read(self, at_least: int = 1) -> bytes:
        """Return the next bytes; fewer than `at_least` only at the end."""
        data = self._stream.read(CHUNK_BYTES)
        while 0 < len(data) < at_least and (more := self._stream.read(CHUNK_BYTES)):
            data += more
        self._offset += len(data)
        return data
