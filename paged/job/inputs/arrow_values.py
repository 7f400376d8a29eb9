"""JSON values of Arrow columns.

JSON lacks most of Arrow's types, so that a value of one of these is a text, see `json_columns`.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from pagedrun.paged.job.inputs.json_line import INFINITIES, MAX_DEPTH, NAN, shown_key
from pagedrun.paged.job.inputs.row import Record
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue


def json_records(table: Any) -> Iterator[Record]:
    """Yield the rows of an Arrow table; see `json_columns`."""
    values = {name: _objects(table.column(name)) for name in table.schema.names}
    for index in range(table.num_rows):
        yield json_columns({name: each[index] for name, each in values.items()})


def json_columns(record: Mapping[str, object]) -> Record:
    """Return a record's columns as JSON values.

    Dates and times become ISO 8601 text, durations seconds, decimals and UUIDs their text, bytes
    base64, maps lists of pairs, and numbers that are not finite the texts NaN, Infinity and
    -Infinity. Text that is not valid UTF-8 has U+FFFD for each wrong byte, and is unreadable, as
    are values that nest too deep. In prompts NaN is null, a missing value. Null keys of objects
    with answer settings are dropped.
    """
    written: dict[str, JSONValue] = {}
    missing: dict[str, JSONValue] = {}  # columns with a NaN, for prompts
    unreadable: dict[str, RowError] = {}
    for name, given in record.items():
        reading = _Reading(NAN)
        value = reading.value(given, 1)
        written[name] = _without_nulls(value) if name in _OBJECT_COLUMNS else value
        if reading.has_nan:
            missing[name] = _Reading(None).value(given, 1)
        if reading.problem is not None:
            code, reason = reading.problem
            shown = shown_key(name)
            unreadable[name] = RowError(code, f"the column {shown!r} {reason}", param=shown)
    if not missing:
        return Record(written, unreadable=unreadable)
    return Record({**written, **missing}, written, unreadable)


# Objects with answer settings. A table fills each key that any row has with null in the other rows,
# where null would have a meaning: a schema with `"const": null` allows only null.
_OBJECT_COLUMNS = frozenset({"json_schema", "response_format", "body"})


def _without_nulls(value: JSONValue) -> JSONValue:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


class _InvalidText(str):
    """Text with U+FFFD in place of bytes that are not UTF-8."""


class _Reading:
    """Conversion of one value; `problem` is the code and the reason of an inexact one.

    `nan` stands for NaN, and `has_nan` tells whether there was one.
    """

    def __init__(self, nan: str | None) -> None:
        self._nan = nan
        self.has_nan = False
        self.problem: tuple[str, str] | None = None

    def value(self, value: object, depth: int) -> JSONValue:
        if isinstance(value, _InvalidText):
            self.problem = "invalid_utf8", "contains text that is not valid UTF-8"
            return str(value)
        if value is None or isinstance(value, str | bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else self._not_finite(value)
        if depth > MAX_DEPTH:
            self.problem = "invalid_value", f"is nested deeper than {MAX_DEPTH} levels"
            return None
        if isinstance(value, dict):
            return {str(name): self.value(each, depth + 1) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each, depth + 1) for each in value]
        if isinstance(value, datetime | date | time):  # a Timestamp of pandas is a datetime
            return value.isoformat()
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, Decimal | UUID):
            return str(value)
        if isinstance(value, bytes):
            return base64.b64encode(value).decode("ascii")
        what = f"contains a {type(value).__name__}, which JSON cannot represent"
        self.problem = "invalid_value", what
        return str(value)

    def _not_finite(self, value: float) -> str | None:
        if math.isnan(value):
            self.has_nan = True
            return self._nan
        return INFINITIES[value > 0]


def _objects(column: Any) -> list[object]:
    """Return the values of an Arrow column as Python objects.

    Arrow does not validate text, and its moments may be outside of Python's years.
    """
    exact = _with_exact_times(column.type)
    if exact != column.type:
        column = column.cast(exact)
    try:
        found: list[object] = column.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):
        return [_object(each) for each in column]
    return found


def _with_exact_times(kind: Any) -> Any:
    """Return a type with text for times in nanoseconds, of which Python objects lose the last
    three digits.
    """
    import pyarrow
    from pyarrow import types

    if kind == pyarrow.time64("ns"):
        return pyarrow.string()
    if types.is_struct(kind):
        return pyarrow.struct([each.with_type(_with_exact_times(each.type)) for each in kind])
    for is_kind, make in (
        (types.is_list, pyarrow.list_),
        (types.is_large_list, pyarrow.large_list),
        (types.is_fixed_size_list, lambda field: pyarrow.list_(field, kind.list_size)),
    ):
        if is_kind(kind):
            return make(kind.value_field.with_type(_with_exact_times(kind.value_type)))
    return kind


def _object(scalar: Any) -> object:
    """Return the Python object of a scalar, also of one that Python cannot hold.

    A moment outside of Python's years is its number of units.
    """
    from pyarrow import types

    kind = scalar.type
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if not types.is_nested(kind) and not types.is_dictionary(kind):
            return _InvalidText(scalar.as_buffer().to_pybytes().decode("utf-8", "replace"))
    except (ValueError, OverflowError):
        if types.is_temporal(kind):
            return scalar.value
    if types.is_struct(kind):
        return {field.name: _object(scalar[at]) for at, field in enumerate(kind)}
    if types.is_map(kind):
        return [tuple(map(_object, (pair[0], pair[1]))) for pair in scalar.values]
    if types.is_nested(kind) and not types.is_union(kind):
        return [_object(each) for each in scalar.values]
    return _object(scalar.value)  # of a dictionary, or the storage of an extension type
