"""ArraySource: rows that are the elements of one JSON array."""

import hashlib
from collections.abc import Iterator

from pagedrun.paged.job.inputs.array_elements import ArrayElements, Element
from pagedrun.paged.job.inputs.counted_stream import CountedStream
from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.json_line import parse_object
from pagedrun.paged.job.inputs.line_source import utf8_text
from pagedrun.paged.job.inputs.row import RECORD, Columns, Row, default_id, with_columns
from pagedrun.paged.job.inputs.row_source import InputFacts, refuse_empty
from pagedrun.paged.values.errors import RowError


class ArraySource:
    """The rows of a JSON array, read piece by piece; implements `RowSource`.

    `name` is used in messages. `packed` is the stream below, if `stream` is unpacked from one: the
    digest is of its bytes. `can_drain` is false for pipes. An element that is no row is yielded
    with its error; raises `UsageError` where the array itself cannot be followed.
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
        self.facts = InputFacts()
        self._can_drain = can_drain
        self._stream = stream
        self._name = name
        self._max_record_bytes = max_record_bytes
        self._bytes = packed or stream

    @property
    def num_bytes_read(self) -> int:
        """Bytes read so far, unpacked."""
        return self._stream.num_bytes

    def __iter__(self) -> Iterator[Row]:
        index = -1
        elements = ArrayElements(self._stream, self._name, self._max_record_bytes)
        for index, element in enumerate(elements):
            yield self._row(index, element)
        if index < 0:
            raise refuse_empty(self._name)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return size and SHA-256 of the bytes read so far."""
        return InputDigest(self._bytes.num_bytes, self._bytes.sha256, whole)

    def drain(self) -> bool:
        """Read to the end of the file."""
        if self._can_drain:
            self._bytes.drain()
        return self._can_drain

    def _row(self, index: int, element: Element) -> Row:
        digest = hashlib.sha256(element.data or b"").digest()
        row = Row(
            index, element.number, element.byte_offset, digest, default_id(index), unit=RECORD
        )

        def read() -> Columns:
            if element.data is None:
                raise RowError(
                    "line_too_long", f"the record is longer than {self._max_record_bytes} bytes"
                )
            return parse_object(utf8_text(element.data, element.byte_offset))

        return with_columns(row, read)
