"""Rows of an input, and the protocol of their sources."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.json_value import JSONValue

ID_COLUMNS = ("id", "custom_id")
MAX_ID_CHARS = 1024
LINE, RECORD = "line", "record"  # units of a row's position

Columns = Mapping[str, JSONValue]
"""Values of a row by column name."""


@dataclass(frozen=True, slots=True)
class Record:
    """Columns of a row as JSON values; the fields are those of `Row`."""

    columns: Columns
    written: Columns | None = None
    unreadable: Mapping[str, RowError] = field(default_factory=dict)
    unfit: Mapping[str, RowError] = field(default_factory=dict)

    @property
    def given(self) -> Columns:
        """Columns of outputs."""
        return self.columns if self.written is None else self.written


@dataclass(frozen=True, slots=True)
class Row:
    """Input row, or the error of an invalid one.

    `index` counts rows from 0. `line` is the first physical line of the row, from 1, or the number
    of the record, as `unit` tells. `byte_offset` counts the decompressed bytes before the row; None
    without any. `digest` is the SHA-256 of the row's bytes (without the end of its line), to detect
    edited inputs. A row with an `error` has the readable columns. `file` is its input, if there are
    several: then `line` counts in that. `written` are the columns of outputs where `columns`, those
    of prompts, differ from them: CSV cells parsed as JSON, invalid records, NaN. `unreadable` are
    the errors of columns that fail the row only if its prompt uses them, `unfit` those of columns
    that fail it if they are more than a variable of a template.
    """

    index: int
    line: int
    byte_offset: int | None
    digest: bytes
    id: str | int
    columns: Columns = field(default_factory=dict)
    error: RowError | None = None
    unit: str = LINE
    file: str | None = None
    written: Columns | None = None
    unreadable: Mapping[str, RowError] = field(default_factory=dict)
    unfit: Mapping[str, RowError] = field(default_factory=dict)

    @property
    def given(self) -> Columns:
        """Columns of outputs."""
        return self.columns if self.written is None else self.written

    def without_columns(self) -> "Row":
        """Return the row without its columns."""
        return replace(self, columns={}, written=None, unreadable={}, unfit={})

    @property
    def place(self) -> str:
        """Position in the input, for messages."""
        position = f"{self.unit} {self.line}"
        return position if self.file is None else f"{self.file}, {position}"

    def place_in(self, name: str) -> str:
        """Return the position with the input's name, `name` if there is only one."""
        return f"{self.file or name}, {self.unit} {self.line}"


def with_record(row: Row, read: Callable[[], Record]) -> Row:
    """Return `row` with the record returned by `read` and its id, or with the error raised."""
    try:
        found = read()
        row = replace(
            row,
            columns=found.columns,
            written=found.written,
            unreadable=found.unreadable,
            unfit=found.unfit,
        )
        for name in ID_COLUMNS:
            if name in row.unfit:
                raise _no_id(name)
        return replace(row, id=row_id(row.columns, row.index))
    except RowError as error:
        return replace(row, error=at_line(error, row.line))


def id_column(columns: Columns) -> str | None:
    """Return the column with the row's id: `id`, else `custom_id`; null counts as absent."""
    return next((name for name in ID_COLUMNS if columns.get(name) is not None), None)


def row_id(columns: Columns, index: int) -> str | int:
    """Return the row's own id, or `row-<index>`.

    Raises `RowError` (`invalid_id`) for anything but a string or an integer.
    """
    name = id_column(columns)
    if name is None:
        return default_id(index)
    value = columns[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _no_id(name)
    if len(str(value)) > MAX_ID_CHARS:
        raise RowError("invalid_id", f"{name} is longer than {MAX_ID_CHARS} characters", param=name)
    return value


def _no_id(name: str) -> RowError:
    return RowError("invalid_id", f"{name} must be a string or an integer", param=name)


def at_line(error: RowError, line: int) -> RowError:
    """Return `error` with a line (or record) number, if it has none."""
    if error.line is not None:
        return error
    return RowError(error.code, error.marked, param=error.param, line=line)


def default_id(index: int) -> str:
    """Return the id of a row without its own."""
    return f"row-{index}"


@dataclass(slots=True)
class InputFacts:
    """Facts about an input as a whole, known once its first row is read.

    `notes` are messages for the user, by topic. `columns` are the names of all columns, in order;
    None if each row has its own. `schema` is that of Arrow tables.
    """

    notes: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    schema: Any = None


@dataclass(frozen=True, slots=True)
class InputDigest:
    """Size and digest of the bytes read. `whole` is false if `limit` ended the reading of a stream.

    For a file, `num_bytes` and `sha256` are those of the file on disk. For a dataset they are those
    of its rows as JSON, and `fingerprint` is that of the `datasets` library, if any.
    """

    num_bytes: int
    sha256: str
    whole: bool
    fingerprint: str | None = None


class RowSource(Protocol):
    """Rows of an open input, once and in order, in constant memory.

    A bad row is yielded with its `error`. Iterating raises `UsageError`, which names the input, if
    the input as a whole cannot be read.
    """

    @property
    def facts(self) -> InputFacts:
        """Facts of the input so far."""
        ...

    @property
    def num_bytes_read(self) -> int:
        """Decompressed bytes of the rows so far, the measure of windows."""
        ...

    def __iter__(self) -> Iterator[Row]:
        """Yield each row; raises `UsageError` if there is none."""
        ...

    def digest(self, *, whole: bool) -> InputDigest:
        """Return the digest of the bytes so far; `whole` if they are the whole input."""
        ...

    def drain(self) -> bool:
        """Read the rest for the digest, without making rows.

        Returns false where that may take forever or a download: pipes, and datasets on the hub.
        """
        ...


class EmptyInput(UsageError):
    """Input without rows."""


def refuse_empty(name: str) -> EmptyInput:
    """Return the error of an input without rows."""
    return EmptyInput(f"{name}: empty input, there is no row to answer")
