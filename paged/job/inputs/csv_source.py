"""Rows of CSV files with a header."""

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pagedrun.paged.job.inputs.byte_streams import CHUNK_BYTES, CountedStream
from pagedrun.paged.job.inputs.csv_dialect import COMMA, CsvDialect
from pagedrun.paged.job.inputs.json_line import parse_value, shown_key
from pagedrun.paged.job.inputs.line_source import BOM, ByteSource, not_utf8, refuse_foreign
from pagedrun.paged.job.inputs.row import (
    ID_COLUMNS,
    Columns,
    Record,
    Row,
    default_id,
    refuse_empty,
    with_record,
)
from pagedrun.paged.text.prompt import RAW
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import sampling_keys

MAX_COLUMNS = 10_000
# Cells are text. These columns are not, and their cells are parsed as JSON.
_TEXT_COLUMNS = {"stop", "regex", "grammar", "reasoning_tags", "vote", "early_stopping"}
_SWITCHES = {"true": True, "false": False}
_PROMPT_COLUMNS = {"messages", "prompt_token_ids"}
_JSON_COLUMNS = (sampling_keys() - _TEXT_COLUMNS) | {
    *_PROMPT_COLUMNS,
    *("continuations", "priority", "sampling_params", "response_format"),
}


class CsvSource(ByteSource):
    """Rows of a CSV file, as written by Python's csv, pandas and spreadsheets.

    Cells may be in double quotes, doubled inside, with newlines; blank lines are skipped.
    `delimiter` separates cells; None to detect it in the first records. Leading columns without a
    name, such as the index of pandas, are dropped; others get the name that pandas gives them.
    Blanks around names are dropped. Cells are text; those of sampling columns, `messages` and
    `prompt_token_ids` are parsed as JSON, true or false under `raw` is a boolean, and an empty one
    there or in an id column counts as absent.

    Raises `UsageError` for a header that cannot name columns, for a record without an end, and for
    a single column whose cells have unquoted delimiters.
    """

    def __init__(
        self,
        stream: CountedStream,
        name: str,
        max_record_bytes: int,
        packed: CountedStream | None = None,
        *,
        delimiter: str | None = None,
        can_drain: bool = True,
    ) -> None:
        super().__init__(stream, packed, can_drain=can_drain)
        self._name = name
        self._delimiter = delimiter
        self._has_values = False
        self._max_record_bytes = max_record_bytes
        self._line = 0  # the last one read
        self._record_line = 0  # first line of this record
        self._record_offset = 0
        self._record = RecordDigest()

    def __iter__(self) -> Iterator[Row]:
        dialect = self._found_dialect()
        records = self._records(dialect)
        header = next(records, None)
        if header is None:
            raise refuse_empty(self._name)
        if isinstance(header, RowError):
            raise UsageError(f"{self._name}: the header is not valid CSV ({header.message})")
        columns = self._columns_of(header, dialect)
        self._refuse_split_records(columns, dialect)
        self.facts.columns = columns.names
        self._has_values = not _JSON_COLUMNS.isdisjoint(columns.names)
        index = -1
        for index, cells in enumerate(records):
            yield self._row(index, columns, cells)
        if index < 0:
            raise refuse_empty(self._name)

    def _records(self, dialect: CsvDialect) -> Iterator[list[str] | RowError]:
        """Yield the cells of each record that is not empty, or its error."""
        # The module's limit is global and too small; our own limit must apply first.
        csv.field_size_limit(max(csv.field_size_limit(), self._max_record_bytes + 64))
        lines = self._lines(LineBlocks(self._stream, dialect.line_end))
        if dialect.has_excel_line:
            next(lines)
        reader = csv.reader(
            lines, strict=True, delimiter=dialect.delimiter, skipinitialspace=dialect.skips_blank
        )
        while True:
            self._record = RecordDigest()
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

    def _found_dialect(self) -> CsvDialect:
        """Return the dialect; a detected delimiter is noted."""
        found = CsvDialect.find(self._stream.peek(), self._delimiter)
        if self._delimiter is None and found.delimiter != COMMA:
            self.facts.notes["delimiter"] = (
                f"{self._name}: cells are separated by {found.delimiter!r}; "
                f"{option('delimiter')} sets another character"
            )
        if found.skips_blank:
            self.facts.notes["blanks"] = (
                f"{self._name}: a blank follows each {found.delimiter!r}, and is dropped"
            )
        return found

    def _lines(self, blocks: "LineBlocks") -> Iterator[str]:
        """Yield physical lines; bytes that are not UTF-8 become lone surrogates."""
        room = self._max_record_bytes
        offset = 0
        while True:
            is_first = self._record.is_empty
            if is_first:
                room = self._max_record_bytes + len(BOM) + 2
            data = blocks.read(room + 1, in_quotes=not is_first)
            if not data:
                return
            room -= len(data)
            if self._line == 0:
                refuse_foreign(self._name, data)
            if is_first:
                self._record_line, self._record_offset = self._line + 1, offset
            self._line += data.count(blocks.end) + (not data.endswith(blocks.end))
            offset += len(data)
            if room < 0:
                raise UsageError(
                    f"{self._name}: the record on line {self._record_line} is longer than "
                    f"{self._max_record_bytes} bytes; is a quote opened there and never closed?"
                )
            if self._record_offset == 0:
                data = data.removeprefix(BOM) if is_first else data
            self._record.add(data)
            yield data.decode("utf-8", "surrogateescape")

    def _columns_of(self, header: Sequence[str], dialect: CsvDialect) -> "CsvColumns":
        """Return the columns of a header; raises `UsageError` for one that cannot name them."""
        where = f"{self._name}, line {self._record_line}"
        if len(header) > MAX_COLUMNS:
            raise UsageError(f"{where}: the header names more than {MAX_COLUMNS} columns")
        names = [name.strip() for name in header]
        named = [index for index, name in enumerate(names) if name]
        if not named:
            raise UsageError(f"{where}: the header names no columns; give each column a name")
        if named[0]:
            which = "the first column has" if named[0] == 1 else f"{named[0]} columns have"
            self.facts.notes["unnamed"] = (
                f"{where}: {which} no name, like the index written by pandas, and "
                f"{'is' if named[0] == 1 else 'are'} dropped; name it in the header to keep "
                "it"
            )
        seen: set[str] = set()
        for index in named:
            name = names[index]
            if not _is_utf8(name):
                raise UsageError(f"{where}: the name of column {index + 1} is {not_utf8()}")
            if name in seen:
                raise UsageError(
                    f"{where}: the header names the column {shown_key(name)!r} twice; "
                    f"rename one of them"
                )
            seen.add(name)
        for index in range(named[0], len(names)):
            if not names[index]:
                names[index] = _pandas_name(index, seen)
                self.facts.notes.setdefault(
                    "named",
                    f"{where}: column {index + 1} has no name, and is called {names[index]!r}, as "
                    "by pandas; name it in the header",
                )
        num_optional = len(names) - 1 - named[-1]
        return CsvColumns(tuple(names[named[0] :]), named[0], num_optional, dialect.num_empty)

    def _refuse_split_records(self, columns: "CsvColumns", dialect: CsvDialect) -> None:
        if dialect.split_record is None:
            return
        line, count = dialect.split_record
        raise UsageError(
            f"{self._name}, line {line}: the header names one column, "
            f"{shown_key(columns.names[0])!r}, but the record has {count} cells: put quotes around "
            f"cells that have a {dialect.delimiter!r}, or pass {option('delimiter')} tab to read "
            "each line as one cell",
            field="delimiter",
        )

    def _row(self, index: int, columns: "CsvColumns", cells: list[str] | RowError) -> Row:
        digest = self._record.digest()
        row = Row(index, self._record_line, self._record_offset, digest, default_id(index))
        unreadable: dict[str, RowError] = {}
        row = with_record(row, lambda: Record(_columns(columns, cells, unreadable)))
        if isinstance(cells, RowError) or (row.error is None and not self._has_values):
            return row
        cells = cells[columns.num_dropped :]
        written = dict(zip(columns.names, map(_utf8, cells), strict=False))
        return replace(row, written=written, unreadable=unreadable)


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """Columns of a CSV file.

    `num_dropped` cells at the beginning of a record have no column. A record may lack the last
    `num_optional` cells, and may have `num_empty` empty ones more.
    """

    names: tuple[str, ...]
    num_dropped: int
    num_optional: int
    num_empty: int

    def named(self, cells: list[str]) -> dict[str, str]:
        """Return the cells of a record by column; raises `RowError` for another number of them."""
        cells = cells[self.num_dropped :] if len(cells) >= self.num_dropped else []
        count = len(self.names)
        left = count - len(cells)
        if 0 < left <= self.num_optional:
            cells = cells + [""] * left
        elif 0 < -left <= self.num_empty and not any(cells[count:]):
            cells = cells[:count]
        if len(cells) != count:
            raise RowError(
                "invalid_csv_record",
                f"the record has {len(cells) + self.num_dropped} cells, but the header names "
                f"{count + self.num_dropped} columns"
                + "; a cell with a delimiter in it needs quotes"
                * (len(cells) > count),
            )
        return dict(zip(self.names, cells, strict=True))


def _pandas_name(index: int, taken: set[str]) -> str:
    """Return the name that pandas gives to a column, by its index in the header."""
    name, number = f"Unnamed: {index}", 0
    while name in taken:
        number += 1
        name = f"Unnamed: {index}.{number}"
    taken.add(name)
    return name


class RecordDigest:
    """SHA-256 of a record without the end of its last line."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._last = b""

    @property
    def is_empty(self) -> bool:
        """True before the first line."""
        return not self._last

    def add(self, data: bytes) -> None:
        """Add lines."""
        self._sha256.update(self._last)
        self._last = data

    def digest(self) -> bytes:
        """Return the digest; call it once."""
        self._sha256.update(self._last.rstrip(b"\r\n"))
        return self._sha256.digest()


class LineBlocks:
    """Lines of a stream, one by one, or within quotes as many as are at hand; `end` is the last
    byte of a line.
    """

    def __init__(self, stream: CountedStream, end: bytes) -> None:
        self.end = end
        self._stream = stream
        self._data = b""
        self._begin = 0  # of the data not yet returned

    def read(self, most: int, *, in_quotes: bool) -> bytes:
        """Return the next line with its end; none at the end of the stream.

        in_quotes: the beginning is within quotes, so that lines belong together up to the next one
        with a quote. A line of `most` bytes or more may be cut.
        """
        while True:
            stop = self._stop(in_quotes)
            held = len(self._data) - self._begin
            if stop == 0 and held < most:
                # As many again, so that a long line is not copied often.
                more = self._stream.read(max(CHUNK_BYTES, held))
                if more:
                    self._data = self._data[self._begin :] + more
                    self._begin = 0
                    continue
            begin, self._begin = self._begin, stop or len(self._data)
            return self._data[begin : self._begin]

    def _stop(self, in_quotes: bool) -> int:
        """Return the end of the next lines in the data, 0 without one."""
        if not in_quotes:
            return self._data.find(self.end, self._begin) + 1
        quote = self._data.find(b'"', self._begin)
        if quote >= 0:
            return self._data.find(self.end, quote) + 1
        return max(self._data.rfind(self.end, self._begin) + 1, 0)


def _columns(
    columns: CsvColumns, cells: list[str] | RowError, unreadable: dict[str, RowError]
) -> Columns:
    """Return the values of a record; errors of columns that a prompt need not use are added to
    `unreadable`.
    """
    if isinstance(cells, RowError):
        raise cells
    named = columns.named(cells)
    if not all(map(_is_utf8, cells)):
        raise RowError("invalid_utf8", f"the record is {not_utf8()}")
    values: dict[str, JSONValue] = {}
    for name, cell in named.items():
        try:
            values[name] = _value(name, cell)
        except RowError as error:
            if name not in _PROMPT_COLUMNS:
                raise
            values[name], unreadable[name] = cell, error
    return values


def _value(name: str, cell: str) -> JSONValue:
    if name in ID_COLUMNS or name in _TEXT_COLUMNS:
        return cell or None
    if name == RAW:  # many tables have a text column of this name, for --prompt-field
        return _SWITCHES.get(cell.strip().lower(), cell or None)
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


def _utf8(text: str) -> str:
    """Return a cell with U+FFFD in place of bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
