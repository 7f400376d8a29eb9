"""Values of Arrow tables as values that JSON can hold."""

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from pagedrun.paged.job.inputs.json_line import MAX_DEPTH, shown_key
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue

# Objects that say how a row is answered. A table has a key for all rows that one of them has, null
# in the others, where it would mean something: a schema with `"const": null` allows null alone.
_OBJECT_COLUMNS = frozenset({"json_schema", "response_format", "body"})


def json_columns(record: Mapping[str, object]) -> dict[str, JSONValue]:
    """Return a record's columns, each as a value that JSON can hold.

    Dates and times become ISO 8601 text, durations seconds, decimals and UUIDs their text, bytes
    base64, and NaN, which means a missing value in these files, null. In objects that say how the
    row is answered, a key with null counts as not there. Raises `RowError` for infinities and for
    values that nest too deep.
    """
    columns = {name: _json_value(value, name, 1) for name, value in record.items()}
    return {
        name: _without_nulls(value) if name in _OBJECT_COLUMNS else value
        for name, value in columns.items()
    }


def _without_nulls(value: JSONValue) -> JSONValue:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _json_value(value: object, column: str, depth: int) -> JSONValue:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise _refused(column, "contains an infinite number")
        return None if math.isnan(value) else value
    if depth > MAX_DEPTH:
        raise _refused(column, f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {str(name): _json_value(each, column, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(each, column, depth + 1) for each in value]
    if isinstance(value, datetime | date | time):  # a Timestamp of pandas is a datetime
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise _refused(column, f"contains a {type(value).__name__}, which JSON cannot represent")


def _refused(column: str, reason: str) -> RowError:
    shown = shown_key(column)
    return RowError("invalid_value", f"the column {shown!r} {reason}", param=shown)
