"""ParquetSource: the rows of a Parquet file."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from pagedrun.paged.job.inputs.arrow.arrow_rows import BATCH_ROWS, ArrowRows
from pagedrun.paged.job.inputs.counted_stream import CountedStream
from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.job.inputs.row_source import InputFacts, refuse_empty
from pagedrun.paged.values.errors import UsageError

MAGIC = b"PAR1"  # first and last
MAX_FOOTER_BYTES = 2**26  # of the schema, which is read before a limit can be set on anything else


class ParquetSource:
    """The rows of the Parquet file `file`, a few at a time; implements `RowSource`.

    `name` is used in messages. Raises `UsageError` if the file is no Parquet or is damaged, names
    a column twice, or pyarrow is missing.
    """

    def __init__(self, file: BinaryIO, name: str, max_row_bytes: int) -> None:
        self._file = file
        self._name = name
        self._rows = ArrowRows(self._batches(), max_row_bytes)

    @property
    def facts(self) -> InputFacts:
        """Columns and types of the table."""
        return self._rows.facts

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the rows so far, as JSON."""
        return self._rows.num_bytes

    def __iter__(self) -> Iterator[Row]:
        is_empty = True
        for row in self._rows:
            is_empty = False
            yield row
        if is_empty:
            raise refuse_empty(self._name)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return size and SHA-256 of the file, all of it: its rows have no bytes to count."""
        place = self._file.tell()
        self._file.seek(0)
        counted = CountedStream(self._file)
        counted.drain()
        self._file.seek(place)
        return InputDigest(counted.num_bytes, counted.sha256, whole=True)

    def drain(self) -> bool:
        """Leave what is left: the digest is that of the file in any case."""
        return True

    def _batches(self) -> Iterator[Any]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise UsageError(
                f"{self._name} needs the package pyarrow: pip install datasets, which brings it"
            ) from error
        self._check_ends()
        num_rows = 0
        try:
            # Not a context manager: that would close the file, which is not this reader's.
            opened = parquet.ParquetFile(self._file, pre_buffer=False)
            names = opened.schema_arrow.names
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise UsageError(f"{self._name}: the column {repeated[0]!r} occurs twice")
            for batch in opened.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                yield batch
                num_rows += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            raise UsageError(
                f"{self._name}: cannot be read after record {num_rows} ({reason}); is the file "
                "damaged?"
            ) from error

    def _check_ends(self) -> None:
        """Refuse what is no Parquet, or announces more metadata than can be meant."""
        size = self._file.seek(0, 2)
        self._file.seek(max(0, size - 8))
        end = self._file.read()
        self._file.seek(0)
        if size < 12 or self._file.read(4) != MAGIC or end[4:] != MAGIC:
            raise UsageError(
                f"{self._name} is not a complete Parquet file: it does not begin and end with PAR1"
            )
        if int.from_bytes(end[:4], "little") > MAX_FOOTER_BYTES:
            raise UsageError(f"{self._name}: the footer is longer than {MAX_FOOTER_BYTES} bytes")
