"""Rows of CSV files with a header."""

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pagedrun.paged.job.inputs.byte_streams import CountedStream
from pagedrun.paged.job.inputs.json_line import parse_value, shown_key
from pagedrun.paged.job.inputs.line_source import BOM, ByteSource, refuse_foreign
from pagedrun.paged.job.inputs.row import (
    ID_COLUMNS,
    Columns,
    Row,
    default_id,
    refuse_empty,
    with_columns,
)
from pagedrun.paged.text.prompt import RAW
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import sampling_keys

MAX_COLUMNS = 10_000
COMMA = ","
DELIMITERS = (COMMA, ";", "\t", "|")  # candidates of detection
_SAMPLE_RECORDS = 50
_LEAST_SHARE = 0.5  # of records with as many cells as the header
# Cells are text. These columns are not, and their cells are parsed as JSON.
_TEXT_COLUMNS = {"stop", "regex", "grammar", "reasoning_tags", "vote", "early_stopping"}
_SWITCHES = {"true": True, "false": False}
_JSON_COLUMNS = (sampling_keys() - _TEXT_COLUMNS) | {
    *("messages", "prompt_token_ids", "continuations", "priority"),
    *("sampling_params", "response_format"),
}


class CsvSource(ByteSource):
    """Rows of a CSV file, as written by Python's csv, pandas and spreadsheets.

    Cells may be in double quotes, doubled inside, with newlines; blank lines are skipped.
    `delimiter` separates cells; None to detect it in the first records. Leading columns without a
    name, such as the index of pandas, are dropped. Cells are text; those of sampling columns,
    `messages` and `prompt_token_ids` are parsed as JSON, true or false under `raw` is a boolean,
    and an empty one there or in an id column counts as absent.

    Raises `UsageError` for a header that cannot name columns, and for a record without an end.
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
        self._record: list[bytes] = []

    def __iter__(self) -> Iterator[Row]:
        records = self._records()
        header = next(records, None)
        if header is None:
            raise refuse_empty(self._name)
        if isinstance(header, RowError):
            raise UsageError(f"{self._name}: the header is not valid CSV ({header.message})")
        num_unnamed = self._check_header(header)
        self.facts.columns = tuple(header[num_unnamed:])
        self._has_values = not _JSON_COLUMNS.isdisjoint(header)
        index = -1
        for index, cells in enumerate(records):
            yield self._row(index, header, cells, num_unnamed)
        if index < 0:
            raise refuse_empty(self._name)

    def _records(self) -> Iterator[list[str] | RowError]:
        """Yield the cells of each record that is not empty, or its error."""
        # The module's limit is global and too small; our own limit must apply first.
        csv.field_size_limit(max(csv.field_size_limit(), self._max_record_bytes + 64))
        reader = csv.reader(self._lines(), strict=True, delimiter=self._found_delimiter())
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

    def _found_delimiter(self) -> str:
        """Return the delimiter, detected if it is not given."""
        if self._delimiter is not None:
            return self._delimiter
        found = find_delimiter(self._stream.peek())
        if found != COMMA:
            self.facts.notes["delimiter"] = (
                f"{self._name}: cells are separated by {found!r}; {option('delimiter')} sets "
                "another character"
            )
        return found

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

    def _check_header(self, names: Sequence[str]) -> int:
        """Refuse names that cannot be columns; return the number of unnamed leading ones."""
        where = f"{self._name}, line {self._record_line}"
        if len(names) > MAX_COLUMNS:
            raise UsageError(f"{where}: the header names more than {MAX_COLUMNS} columns")
        num_unnamed = next((index for index, name in enumerate(names) if name.strip()), None)
        if num_unnamed is None:
            raise UsageError(f"{where}: the header names no columns; give each column a name")
        if num_unnamed:
            which = "the first column has" if num_unnamed == 1 else f"{num_unnamed} columns have"
            self.facts.notes["unnamed"] = (
                f"{where}: {which} no name, like the index written by pandas, and "
                f"{'is' if num_unnamed == 1 else 'are'} dropped; name it in the header to keep "
                "it"
            )
        seen: set[str] = set()
        for number, name in enumerate(names[num_unnamed:], num_unnamed + 1):
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
        return num_unnamed

    def _row(
        self, index: int, header: Sequence[str], cells: list[str] | RowError, num_unnamed: int
    ) -> Row:
        digest = hashlib.sha256(b"".join(self._record).rstrip(b"\r\n")).digest()
        row = Row(index, self._record_line, self._record_offset, digest, default_id(index))
        row = with_columns(row, lambda: _columns(header, cells, num_unnamed))
        if isinstance(cells, RowError) or (row.error is None and not self._has_values):
            return row
        written = zip(header[num_unnamed:], map(_utf8, cells[num_unnamed:]), strict=False)
        return replace(row, written=dict(written))


def find_delimiter(sample: bytes) -> str:
    """Return the delimiter of a CSV file that begins with `sample`.

    Of the usual characters the best one occurs in the header and splits most records into as many
    cells as the header; comma in a tie and without any.
    """
    text = sample.removeprefix(BOM).decode("utf-8", "replace")
    if not sample.endswith(b"\n") and "\n" in text:
        text = text[: text.rindex("\n") + 1]  # the last line may be cut
    best, most = COMMA, (_LEAST_SHARE, False, 0)
    for delimiter in DELIMITERS:
        share, num_cells = _fit(text, delimiter)
        fit = (share, delimiter == COMMA, num_cells)
        if num_cells > 1 and fit >= most:
            best, most = delimiter, fit
    return best


def _fit(text: str, delimiter: str) -> tuple[float, int]:
    """Return the share of first records with as many cells as the header, and that number."""
    records = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    try:
        header = next(records, [])
        sizes = [len(cells) for cells in islice(records, _SAMPLE_RECORDS)]
    except csv.Error:
        return 0.0, 0
    return sizes.count(len(header)) / len(sizes) if sizes else 1.0, len(header)


def _columns(header: Sequence[str], cells: list[str] | RowError, num_unnamed: int) -> Columns:
    if isinstance(cells, RowError):
        raise cells
    if len(cells) != len(header):
        raise RowError(
            "invalid_csv_record",
            f"the record has {len(cells)} cells, but the header names {len(header)} columns"
            + "; a cell with a delimiter in it needs quotes" * (len(cells) > len(header)),
        )
    if not all(map(_is_utf8, cells)):
        raise RowError("invalid_utf8", "the record is not valid UTF-8")
    named = zip(header[num_unnamed:], cells[num_unnamed:], strict=True)
    return {name: _value(name, cell) for name, cell in named}


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
