"""GivenRow: an input of one row that is in no file."""

import hashlib
import json
from collections.abc import Iterator

from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.row import Columns, Row, default_id
from pagedrun.paged.job.inputs.row_source import InputFacts


class GivenRow:
    """The row with these columns; implements `RowSource`."""

    def __init__(self, columns: Columns) -> None:
        self.facts = InputFacts()
        self._columns = columns
        self._bytes = json.dumps(columns).encode()

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the row as JSON."""
        return len(self._bytes)

    def __iter__(self) -> Iterator[Row]:
        digest = hashlib.sha256(self._bytes).digest()
        yield Row(0, 1, None, digest, default_id(0), self._columns)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return size and SHA-256 of the row as JSON."""
        return InputDigest(len(self._bytes), hashlib.sha256(self._bytes).hexdigest(), whole)

    def drain(self) -> bool:
        """Return true: there is nothing left."""
        return True
