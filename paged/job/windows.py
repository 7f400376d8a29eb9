"""Windows: the rows of an input in pieces that fit into memory, however long the input is."""

import os
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from pagedrun.paged.errors import UsageError
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.manifest import InputDigest
from pagedrun.paged.job.reader import JsonlReader
from pagedrun.paged.job.row import Row

# What is planned at once. Fixed, since what rows share decides how they are computed: the same
# file must be cut at the same places everywhere.
WINDOW_ROWS = 2**20
WINDOW_BYTES = 2**28


class RowWindows:
    """Reads one window after the other; `is_last` says whether there is another one.

    Raises `UsageError` if the stream cannot be read or is no JSONL.
    """

    def __init__(self, stream: BinaryIO, config: JobConfig) -> None:
        self._config = config
        self._reader = JsonlReader(stream, config.input, config.max_line_bytes)
        self._rows = islice(iter(self._reader), config.limit)
        self._ahead: Row | None = None
        self._num_read = 0
        self._digest: InputDigest | None = None

    @property
    def is_last(self) -> bool:
        """Whether no row is left."""
        return self._digest is not None

    def read(self) -> list[Row]:
        """Return the rows of the next window."""
        try:
            return list(self._read())
        except OSError as error:
            name = self._config.input
            raise UsageError(f"{name}: cannot be read ({error.strerror})") from error

    def digest(self) -> InputDigest:
        """Return what was read so far, of all rows once the last window was."""
        lines = self._reader.lines
        return self._digest or InputDigest(lines.num_bytes, lines.sha256, whole=False)

    def _read(self) -> Iterator[Row]:
        begin = self._reader.lines.num_bytes
        if self._ahead is not None:
            yield self._ahead
        num_rows = int(self._ahead is not None)
        self._ahead = None
        for row in self._rows:
            self._num_read += 1
            # One row is read ahead, which tells whether there is another window.
            if num_rows and (
                num_rows >= WINDOW_ROWS or self._reader.lines.num_bytes - begin > WINDOW_BYTES
            ):
                self._ahead = row
                return
            num_rows += 1
            yield row
        self._finish()

    def _finish(self) -> None:
        lines = self._reader.lines
        cut = self._num_read == self._config.limit
        if cut and os.path.isfile(self._config.input):
            lines.drain()
            cut = False
        self._digest = InputDigest(lines.num_bytes, lines.sha256, whole=not cut)
