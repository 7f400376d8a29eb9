"""ArrowRows: the rows of Arrow tables that come one after the other."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pagedrun.paged.job.inputs.arrow.arrow_value import json_columns
from pagedrun.paged.job.inputs.row import RECORD, Columns, Row, default_id, with_columns
from pagedrun.paged.job.inputs.row_source import InputFacts
from pagedrun.paged.values.errors import RowError

BATCH_ROWS = 128  # what is in memory as Python objects at once


class ArrowRows:
    """Iterates over the rows of `tables`; counts and hashes them as JSON.

    Their bytes in the file are packed in columns and say nothing about a row: a row's digest, and
    `num_bytes` and `sha256` of all so far, are of its columns as one line of JSON.
    """

    def __init__(self, tables: Iterable[Any], max_row_bytes: int) -> None:
        self._tables = tables
        self._max_row_bytes = max_row_bytes
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0
        self.facts = InputFacts()

    @property
    def sha256(self) -> str:
        """Return the hexadecimal digest of the rows so far, each with a newline."""
        return self._sha256.hexdigest()

    def __iter__(self) -> Iterator[Row]:
        index = 0
        for table in self._tables:
            if self.facts.schema is None:
                names = tuple(table.schema.names)
                self.facts.columns, self.facts.schema = names, table.schema
            for record in _records(table):
                yield self._row(index, record)
                index += 1

    def _row(self, index: int, record: Mapping[str, object] | RowError) -> Row:
        columns: Columns = {}
        data, error = b"", None
        try:
            if isinstance(record, RowError):
                raise record
            columns = json_columns(record)
            text = json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
            data = text.encode("utf-8")
            if len(data) > self._max_row_bytes:
                raise RowError(
                    "line_too_long", f"the record is longer than {self._max_row_bytes} bytes"
                )
        except RowError as caught:
            error = caught
        self.num_bytes += len(data) + 1
        self._sha256.update(data + b"\n")
        digest = hashlib.sha256(data).digest()
        row = Row(index, index + 1, None, digest, default_id(index), unit=RECORD)

        def read() -> Columns:
            if error is not None:
                raise error
            return columns

        return with_columns(row, read)


def _records(table: Any) -> Iterator[Mapping[str, object] | RowError]:
    """Yield the rows of a table; Arrow does not check its text, and one bad one fails its row."""
    try:
        yield from table.to_pylist()
        return
    except (UnicodeDecodeError, ValueError, OverflowError):
        pass  # nothing was yielded: the list is made before its first row is
    for place in range(table.num_rows):
        try:
            (record,) = table.slice(place, 1).to_pylist()
        except UnicodeDecodeError:
            yield RowError("invalid_utf8", "the record contains text that is not valid UTF-8")
        except (ValueError, OverflowError) as error:  # a date beyond the year 9999
            yield RowError("invalid_value", f"the record contains an unsupported value: {error}")
        else:
            yield record
