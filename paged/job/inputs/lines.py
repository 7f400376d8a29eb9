"""Lines of a byte stream, split on the newline byte and on nothing else.

Text mode and `splitlines()` also split at a lone carriage return, U+2028 and U+0085, which may
occur inside a JSON string.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pagedrun.paged.job.inputs.counted_stream import CHUNK_BYTES, CountedStream

BOM = b"\xef\xbb\xbf"
JSON_BLANKS = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Line:
    """A physical line without its end; `data` is None if it was longer than the limit."""

    number: int  # from 1
    byte_offset: int  # of the line's first byte, a leading byte order mark not counted in
    data: bytes | None

    @property
    def is_blank(self) -> bool:
        """Whether the line holds nothing but what JSON calls white space."""
        return self.data is not None and not self.data.strip(JSON_BLANKS)


class LineReader(CountedStream):
    """The lines of `stream`, with the size and SHA-256 of the bytes read so far.

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
            # Room for a byte order mark and "\r\n", so that the limit counts the text alone.
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
