"""Rows of an input, and the protocol of their sources."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.json_value import JSONValue

ID_COLUMNS = ("id", "custom_id")
MAX_ID_CHARS = 1024
LINE, RECORD = "line", "record"  # what a row is in its input

Columns = Mapping[str, JSONValue]
"""What a row says, by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One input row, or the reason why it cannot be one.

    `index` counts rows from 0. `line` is the physical line that the row begins on, from 1; where
    rows are no lines, the number of the record, and `unit` says which. `byte_offset` counts the
    bytes before the row, those of the unpacked text if the input is compressed; None if it has
    none. `digest` is the SHA-256 of the row's bytes (without the end of its line), so that an
    edited input can be noticed. A row with an `error` has whatever columns could still be read.
    `file` is the input it is of, if there are several: then `line` counts in that. `written` are
    the columns as the input has them, where `columns` have them otherwise: cells of a CSV that are
    read as JSON, and those of a record that cannot be a row.
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

    @property
    def place(self) -> str:
        """Position in the input, for messages."""
        position = f"{self.unit} {self.line}"
        return position if self.file is None else f"{self.file}, {position}"

    def place_in(self, name: str) -> str:
        """Return the position with the input's name, `name` if there is only one."""
        return f"{self.file or name}, {self.unit} {self.line}"


def with_columns(row: Row, read: Callable[[], Columns]) -> Row:
    """Return `row` with the columns that `read` returns and their id, or with what is wrong."""
    try:
        row = replace(row, columns=read())
        return replace(row, id=row_id(row.columns, row.index))
    except RowError as error:
        return replace(row, error=at_line(error, row.line))


def id_column(columns: Columns) -> str | None:
    """Return the column that names the row: `id`, else `custom_id`; null counts as absent."""
    return next((name for name in ID_COLUMNS if columns.get(name) is not None), None)


def row_id(columns: Columns, index: int) -> str | int:
    """Return the row's own id as given, or `row-<index>`.

    Raises `RowError` (`invalid_id`) for anything but a string or an integer.
    """
    name = id_column(columns)
    if name is None:
        return default_id(index)
    value = columns[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RowError("invalid_id", f"{name} must be a string or an integer", param=name)
    if len(str(value)) > MAX_ID_CHARS:
        raise RowError("invalid_id", f"{name} is longer than {MAX_ID_CHARS} characters", param=name)
    return value


def at_line(error: RowError, line: int) -> RowError:
    """Return `error` with the line (or record) it belongs to, if it does not name one already."""
    if error.line is not None:
        return error
    return RowError(error.code, error.marked, param=error.param, line=line)


def default_id(index: int) -> str:
    """Return the id of a row that has none."""
    return f"row-{index}"


@dataclass(slots=True)
class InputFacts:
    """Facts about an input as a whole, known once its first row is read.

    `notes` are sentences for the user, by what they are about. `columns` are the names of all
    columns, in order; None if each row has its own. `schema` is that of Arrow tables.
    """

    notes: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    schema: Any = None


@dataclass(frozen=True, slots=True)
class InputDigest:
    """The bytes that were read. `whole` is false if `limit` ended the reading of a stream.

    Of a file, `num_bytes` and `sha256` are those of its bytes as they lie on the disk. A dataset
    has no bytes of its own: there they are those of its rows as JSON, and `fingerprint` is the
    one that the `datasets` library keeps, if it does.
    """

    num_bytes: int
    sha256: str
    whole: bool
    fingerprint: str | None = None


class RowSource(Protocol):
    """The rows of an open input, once and in order; memory does not grow with their number.

    A bad row is yielded with its `error`. Iterating raises `UsageError`, which names the input,
    where the input as a whole cannot be read on.
    """

    @property
    def facts(self) -> InputFacts:
        """What is known of the input so far."""
        ...

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the rows so far, unpacked: what windows are cut by."""
        ...

    def __iter__(self) -> Iterator[Row]:
        """Yield each row; raises `UsageError` if there is none."""
        ...

    def digest(self, *, whole: bool) -> InputDigest:
        """Return what was read so far; `whole` says whether that is all there is."""
        ...

    def drain(self) -> bool:
        """Read what is left for the digest, without making rows of it.

        Returns false where that may take forever or a download: pipes, and datasets on the hub.
        """
        ...


class EmptyInput(UsageError):
    """An input has no row."""


def refuse_empty(name: str) -> EmptyInput:
    """Return the refusal of an input without rows."""
    return EmptyInput(f"{name}: empty input, there is no row to answer")
