"""Tables of Arrow inputs as they were read, kept on disk for the columns of a Parquet output.

Rows are JSON during a run, which lacks most of Arrow's types. An output in Parquet has the columns
of its input from here instead: each row of a run is read again whenever it is resumed, so that this
file need not outlive the process.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pagedrun.paged.job.output.output_file import OutputError, reason_of

MEMORY_BYTES = 2**24  # held before anything is written to disk
_COMPRESSION = "lz4"


@dataclass(slots=True)
class _Stream:
    """Consecutive tables of one schema, as an Arrow stream at an offset of the file."""

    schema: Any
    offset: int


class KeptTables:
    """Tables in a temporary file without a name in `folder`; small ones stay in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The file lasts as long as this object, which closes it.
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(folder))  # noqa: SIM115
        self._streams: list[_Stream] = []
        self._writer: Any = None

    def __enter__(self) -> "KeptTables":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, table: Any) -> None:
        """Append a table or record batch. Raises `OutputError`."""
        import pyarrow
        from pyarrow import ipc

        try:
            if not self._streams or self._streams[-1].schema != table.schema:
                self._end_stream()
                self._streams.append(_Stream(table.schema, self._file.tell()))
                has_codec = pyarrow.Codec.is_available(_COMPRESSION)
                options = ipc.IpcWriteOptions(compression=_COMPRESSION if has_codec else None)
                self._writer = ipc.new_stream(self._file, table.schema, options=options)
            self._writer.write(table)
        except OSError as error:
            raise OutputError(
                f"{self._folder}: the columns of the input cannot be kept ({reason_of(error)})",
                error,
            ) from error

    def rows(self, schema: Any) -> "KeptRows":
        """Return a reader of all rows from the first one, with the columns of `schema`."""
        self._end_stream()
        return KeptRows(self._file, tuple(self._streams), schema)

    def _end_stream(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class KeptRows:
    """Rows of the `streams` in `file`, one after the other.

    Each table gets the columns of `schema`: missing ones are null, others are cast.
    """

    def __init__(self, file: Any, streams: Sequence[_Stream], schema: Any) -> None:
        self._file = file
        self._left = list(reversed(streams))
        self._schema = schema
        self._reader: Any = None
        self._batch: Any = None  # that of the last row
        self._begin = self._end = 0  # rows of the batch that are not yet taken
        self._row_bytes = 0  # of the batch, on average
        self._passed: list[Any] = []  # tables of earlier batches, not yet taken

    def advance(self) -> int:
        """Pass the next row; return the bytes of one row of its table, on average."""
        if self._batch is None or self._end == self._batch.num_rows:
            self._pass_batch()
            self._batch = self._next_batch()
            self._row_bytes = self._batch.nbytes // self._batch.num_rows
        self._end += 1
        return self._row_bytes

    def take(self) -> Any:
        """Return a table of the rows passed since the last call."""
        import pyarrow

        self._pass_batch()
        tables, self._passed = self._passed, []
        return pyarrow.concat_tables(tables)

    def _pass_batch(self) -> None:
        if self._end > self._begin:
            rows = self._batch.slice(self._begin, self._end - self._begin)
            self._passed.append(self._conformed(rows))
        self._begin = self._end

    def _next_batch(self) -> Any:
        """Return the next batch that has rows, and begin it."""
        from pyarrow import ipc

        self._begin = self._end = 0
        while True:
            if self._reader is None:
                self._file.seek(self._left.pop().offset)
                self._reader = ipc.open_stream(self._file)
            batch = next(self._reader, None)
            if batch is None:
                self._reader = None
            elif batch.num_rows:
                return batch

    def _conformed(self, batch: Any) -> Any:
        import pyarrow

        columns = []
        for field in self._schema:
            if field.name not in batch.schema.names:
                columns.append(pyarrow.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pyarrow.Table.from_arrays(columns, schema=self._schema)
