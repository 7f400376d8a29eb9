"""Parquet and CSV files of output rows, written piece by piece."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.job.output.column_types import (
    ColumnType,
    InputStruct,
    InputType,
    ListOf,
    ScalarType,
    StructOf,
    ValueType,
    common,
    convert,
    json_text,
    needs_no_conversion,
    required_part,
    type_of,
)
from pagedrun.paged.job.output.kept_tables import KeptRows
from pagedrun.paged.job.output.row_columns import OutputColumns, RowShaper
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.json_value import JSONValue

# A row group is held as Python objects, then as a table.
GROUP_ROWS = 16_384
GROUP_BYTES = 2**24  # of the rows as JSON, or of their columns in Arrow tables

ColumnTypes = Mapping[str, ColumnType]


def require_pyarrow(output: str) -> None:
    """Raise `UsageError` if Parquet cannot be written here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{output} needs the package pyarrow: pip install pyarrow, or let the name end in "
            ".jsonl",
            field="output",
        ) from error


def column_types(rows: Iterable[OutputColumns], shaper: RowShaper) -> ColumnTypes:
    """Return the type of each column of the rows; the first of two passes."""
    known: dict[str, ValueType | InputType | None] = {}
    found: dict[str, ValueType | InputType] = {}
    for name in shaper.names or ():
        known[name] = shaper.type_of(name)
        found[name] = _beginning(known[name])
    for row in rows:
        for name, value in row.items():
            if name not in found:
                known[name] = shaper.type_of(name)
                found[name] = _beginning(known[name])
            of_all, of_column = found[name], known[name]
            if not isinstance(of_all, InputType) and not isinstance(of_column, InputType):
                kind = type_of(value, of_column)
                if not isinstance(kind, ScalarType) and shaper.is_json(name):
                    kind = ScalarType.JSON
                found[name] = common(of_all, kind)
    return {name: shaper.final_type(name, kind) for name, kind in found.items()}


def _beginning(known: ValueType | InputType | None) -> ValueType | InputType:
    return known if isinstance(known, InputType) else required_part(known)


def parquet_pieces(
    rows: Iterable[tuple[OutputColumns, int]],
    types: ColumnTypes,
    metadata: Mapping[bytes, bytes] | None = None,
    vectors: "Sequence[VectorColumn]" = (),
    first_row: int = 0,
    kept: KeptRows | None = None,
) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file of rows, each with its number of bytes as JSON.

    metadata: that of the schema. vectors: replace the columns of their names. first_row: index of
    the first row in them. kept: the same rows in the tables of the input, where columns have types
    of these.
    """
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([_field(name, kind) for name, kind in types.items()], metadata)
    written = schema
    for each in vectors:
        written = written.set(schema.get_field_index(each.name), each.field())
    sink, num_rows = _Sink(), first_row
    with parquet.ParquetWriter(sink, written) as writer:
        for group in _groups(rows, kept):
            given = None if kept is None else kept.take()
            table = _table(group, types, schema, given)
            for each in vectors:
                column = each.array(num_rows, len(group))
                table = table.set_column(schema.get_field_index(each.name), each.field(), column)
            writer.write_table(table, row_group_size=len(group))
            num_rows += len(group)
            yield sink.take()
    yield sink.take()


@dataclass(frozen=True, slots=True)
class VectorColumn:
    """Column of vectors, or of one number of each.

    `read` returns the numbers of `count` rows from one on, [count, size] or [count], and the rows
    that have none, [count] bool: they are null.
    """

    name: str
    dtype: str
    size: int | None
    read: Callable[[int, int], tuple[NDArray[Any], NDArray[np.bool_]]]

    def field(self) -> Any:
        """Return the field of the schema."""
        import pyarrow

        return pyarrow.field(self.name, self._type)

    def array(self, start: int, count: int) -> Any:
        """Return the numbers of rows as an array of Arrow."""
        import pyarrow

        numbers, failed = self.read(start, count)
        mask = failed if failed.any() else None
        if self.size is None:
            return pyarrow.array(numbers, self._type, mask=mask)
        return pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(numbers.reshape(-1)),
            type=self._type,
            mask=None if mask is None else pyarrow.array(mask),
        )

    @property
    def _type(self) -> Any:
        import pyarrow

        number = pyarrow.from_numpy_dtype(self.dtype)
        return number if self.size is None else pyarrow.list_(number, self.size)


def _groups(
    rows: Iterable[tuple[OutputColumns, int]], kept: KeptRows | None
) -> Iterator[list[OutputColumns]]:
    group: list[OutputColumns] = []
    num_bytes = 0
    for row, size in rows:
        group.append(row)
        num_bytes += size if kept is None else max(size, kept.advance())
        if len(group) >= GROUP_ROWS or num_bytes >= GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _table(rows: Sequence[OutputColumns], types: ColumnTypes, schema: Any, given: Any) -> Any:
    """Return the table of rows; given: that of the same rows in the input, or None."""
    import pyarrow

    columns = [_column([row.get(name) for row in rows], types[name], given) for name in types]
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _column(values: Sequence[JSONValue], kind: ColumnType, given: Any) -> Any:
    """Return the array of a column by its JSON values, or by the table of the input."""
    import pyarrow

    match kind:
        case InputType():
            column = kind.of(given)
            # A row group has one dictionary.
            return column.unify_dictionaries() if _is_dictionary(column.type) else column
        case InputStruct(fields):
            parts = []
            for name, each in fields.items():
                inner = [value.get(name) if isinstance(value, dict) else None for value in values]
                part = _column(inner, each, given)
                is_chunked = isinstance(part, pyarrow.ChunkedArray)
                parts.append(part.combine_chunks() if is_chunked else part)
            return pyarrow.StructArray.from_arrays(
                parts, fields=[_field(name, each) for name, each in fields.items()]
            )
    if not needs_no_conversion(kind):
        values = [convert(value, kind) for value in values]
    return pyarrow.array(values, _arrow_type(kind))


def _is_dictionary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_dictionary(kind))


def _field(name: str, kind: ColumnType) -> Any:
    """Return Arrow's field of a column."""
    import pyarrow

    match kind:
        case InputType(field):
            return field.with_name(name)
        case InputStruct(fields):
            parts = [_field(inner, each) for inner, each in fields.items()]
            return pyarrow.field(name, pyarrow.struct(parts))
    return pyarrow.field(name, _arrow_type(kind))


def _arrow_type(kind: ValueType) -> Any:
    """Return Arrow's type. Unknown types and objects without keys are text."""
    import pyarrow

    match kind:
        case ListOf(element):
            return pyarrow.list_(_arrow_type(element))
        case StructOf(fields) if fields:
            return pyarrow.struct([(name, _arrow_type(each)) for name, each in fields.items()])
        case ScalarType.BOOLEAN:
            return pyarrow.bool_()
        case ScalarType.INTEGER | ScalarType.LONG:
            return pyarrow.int64()
        case ScalarType.NUMBER:
            return pyarrow.float64()
    return pyarrow.string()


class _Sink(io.RawIOBase):
    """File object that collects the bytes written by pyarrow."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_bytes

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._num_bytes += len(data)
        return len(data)

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def column_names(rows: Iterable[OutputColumns]) -> list[str]:
    """Return the columns of all rows, in order of first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_lines(rows: Iterable[OutputColumns], names: Sequence[str]) -> Iterator[bytes]:
    """Yield the header and each row's record, in UTF-8, each with its newline.

    Quotes are those of RFC 4180. Text is quoted, so that an empty one differs from null, an empty
    cell; lists and objects are written as JSON text.
    """
    yield _record(names)
    for row in rows:
        yield _record([row.get(name) for name in names])


def _record(values: Iterable[JSONValue]) -> bytes:
    return ",".join(map(_cell, values)).encode("utf-8", "replace") + b"\n"


def _cell(value: JSONValue) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json_text(value)
    text = value if isinstance(value, str) else json_text(value)
    return '"' + text.replace('"', '""') + '"'
