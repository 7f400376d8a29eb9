"""CsvSource: rows of a CSV file with a header."""

import csv
import hashlib
from collections.abc import Iterator, Sequence

from pagedrun.paged.job.inputs.counted_stream import CountedStream
from pagedrun.paged.job.inputs.foreign_format import refuse_foreign
from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.json_line import parse_value, shown_key
from pagedrun.paged.job.inputs.lines import BOM
from pagedrun.paged.job.inputs.row import ID_COLUMNS, Columns, Row, default_id, with_columns
from pagedrun.paged.job.inputs.row_source import refuse_empty
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling.sampling_params import sampling_keys

MAX_COLUMNS = 10_000
# A cell is text. These columns mean more than text, and their cells are read as JSON.
_TEXT_COLUMNS = {"stop", "regex", "grammar", "reasoning_tags", "vote", "early_stopping"}
_JSON_COLUMNS = (sampling_keys() - _TEXT_COLUMNS) | {
    *("messages", "prompt_token_ids", "continuations", "priority"),
    *("sampling_params", "response_format"),
}


class CsvSource:
    """The rows of a CSV file as Python's own reader and spreadsheets write it.

    Commas, double quotes around a cell and doubled inside it, newlines inside quotes; blank lines
    are skipped. Cells are text; those of sampling columns, `messages` and `prompt_token_ids` are
    read as JSON, and an empty one there or in an id column counts as absent. `packed` is the
    stream below, if `stream` is unpacked from one: the digest is of its bytes.

    Raises `UsageError` for a header that cannot name columns, and for a record that has no end.
    """

    def __init__(
        self,
        stream: CountedStream,
        name: str,
        max_record_bytes: int,
        packed: CountedStream | None = None,
    ) -> None:
        self._stream = stream
        self._name = name
        self._max_record_bytes = max_record_bytes
        self._bytes = packed or stream
        self._line = 0  # the last one read
        self._record_line = 0  # the one that this record begins on
        self._record_offset = 0
        self._record: list[bytes] = []

    @property
    def num_bytes_read(self) -> int:
        """Bytes read so far, unpacked."""
        return self._stream.num_bytes

    def __iter__(self) -> Iterator[Row]:
        records = self._records()
        header = next(records, None)
        if header is None:
            raise refuse_empty(self._name)
        if isinstance(header, RowError):
            raise UsageError(f"{self._name}: the header is no CSV ({header.message})")
        self._check_header(header)
        index = -1
        for index, cells in enumerate(records):
            yield self._row(index, header, cells)
        if index < 0:
            raise refuse_empty(self._name)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return size and SHA-256 of the bytes read so far."""
        return InputDigest(self._bytes.num_bytes, self._bytes.sha256, whole)

    def drain(self) -> bool:
        """Read to the end of the file."""
        self._bytes.drain()
        return True

    def _records(self) -> Iterator[list[str] | RowError]:
        """Yield the cells of each record that has any, or what is wrong with it."""
        # The module's limit is the process's, and too small; it must not be met before ours is.
        csv.field_size_limit(max(csv.field_size_limit(), self._max_record_bytes + 64))
        reader = csv.reader(self._lines(), strict=True)
        while True:
            self._record = []
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if "end of data" in str(error):
                    raise UsageError(
                        f"{self._name}: a quote is opened in the record on line "
                        f"{self._record_line} and never closed"
                    ) from error
                yield RowError("invalid_csv_record", f"not valid CSV: {error}")
                continue
            if cells:
                yield cells

    def _lines(self) -> Iterator[str]:
        """Yield physical lines; bytes that are not UTF-8 become lone surrogates."""
        room = self._max_record_bytes
        while True:
            offset = self._stream.num_bytes
            if not self._record:
                room = self._max_record_bytes + len(BOM) + 2
            data = self._stream.readline(room + 1)
            if not data:
                return
            room -= len(data)
            self._line += 1
            if self._line == 1:
                refuse_foreign(self._name, data)
                data = data.removeprefix(BOM)
            if not self._record:
                self._record_line, self._record_offset = self._line, offset
            if room < 0:
                raise UsageError(
                    f"{self._name}: the record on line {self._record_line} is longer than "
                    f"{self._max_record_bytes} bytes; is a quote opened there and never closed?"
                )
            self._record.append(data)
            yield data.decode("utf-8", "surrogateescape")

    def _check_header(self, names: Sequence[str]) -> None:
        where = f"{self._name}, line {self._record_line}"
        if len(names) > MAX_COLUMNS:
            raise UsageError(f"{where}: the header names more than {MAX_COLUMNS} columns")
        seen: set[str] = set()
        for number, name in enumerate(names, 1):
            if not name.strip():
                raise UsageError(f"{where}: column {number} has no name in the header; give it one")
            if not _is_utf8(name):
                raise UsageError(f"{where}: the name of column {number} is not valid UTF-8")
            if name in seen:
                raise UsageError(
                    f"{where}: the header names the column {shown_key(name)!r} twice; "
                    f"rename one of them"
                )
            seen.add(name)

    def _row(self, index: int, header: Sequence[str], cells: list[str] | RowError) -> Row:
        digest = hashlib.sha256(b"".join(self._record).rstrip(b"\r\n")).digest()
        row = Row(index, self._record_line, self._record_offset, digest, default_id(index))
        return with_columns(row, lambda: _columns(header, cells))


def _columns(header: Sequence[str], cells: list[str] | RowError) -> Columns:
    if isinstance(cells, RowError):
        raise cells
    if len(cells) != len(header):
        raise RowError(
            "invalid_csv_record",
            f"the record has {len(cells)} cells, but the header names {len(header)} columns",
        )
    if not all(map(_is_utf8, cells)):
        raise RowError("invalid_utf8", "the record is not valid UTF-8")
    return {name: _value(name, cell) for name, cell in zip(header, cells, strict=True)}


def _value(name: str, cell: str) -> JSONValue:
    if name in ID_COLUMNS or name in _TEXT_COLUMNS:
        return cell or None
    if name not in _JSON_COLUMNS:
        return cell
    if not cell.strip():
        return None
    try:
        return parse_value(cell)
    except RowError as error:
        raise RowError(
            "invalid_param", f"{name} is not readable: {error.marked}", param=name
        ) from error


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
