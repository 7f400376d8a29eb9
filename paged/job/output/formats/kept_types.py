"""Arrow types of input columns that a table of answers keeps, such as timestamps.

Rows are JSON while a run goes on (`arrow_value.json_columns`); here JSON becomes what it was.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import time
from typing import Any

from pagedrun.paged.values.json_value import JSONValue

_UNITS = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}  # in a second


@dataclass(frozen=True, slots=True)
class KeptType:
    """The Arrow type of a column, as its input has it."""

    type: Any


def is_kept(kind: Any) -> bool:
    """Whether values of an Arrow type can be made again of their JSON."""
    return _carrier(kind) is not None or _reader(kind) is not None


def array_of(values: Sequence[JSONValue], kind: Any) -> Any:
    """Return an Arrow array of type `kind` of values in JSON."""
    import pyarrow

    carrier = _carrier(kind)
    if carrier is not None:
        return pyarrow.array(values, carrier).cast(kind)
    read = _reader(kind)
    assert read is not None
    return pyarrow.array([None if each is None else read(each) for each in values], kind)


def _carrier(kind: Any) -> Any:
    """Return the Arrow type of values in JSON that Arrow casts to `kind`; None for nested types,
    whose nulls it casts too, and for those that it cannot cast text to."""
    import pyarrow
    from pyarrow import types

    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return kind
    if types.is_floating(kind):
        return pyarrow.float64()
    if types.is_dictionary(kind):
        return pyarrow.string() if types.is_string(kind.value_type) else None
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if is_text or types.is_timestamp(kind) or types.is_date(kind) or types.is_decimal(kind):
        return pyarrow.string()
    return None


def _reader(kind: Any) -> Callable[[Any], object] | None:
    """Return what makes of a value in JSON a Python object for `kind`, None if nothing does."""
    import pyarrow
    from pyarrow import types

    if types.is_time(kind):
        return time.fromisoformat
    if types.is_duration(kind):
        return lambda seconds: round(seconds * _UNITS[kind.unit])
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return base64.b64decode
    if types.is_struct(kind):
        readers = {each.name: _reader(each.type) for each in kind.fields}
        if not readers or None in readers.values():
            return None
        return lambda value: {name: _read(value.get(name), readers[name]) for name in readers}
    if types.is_list(kind) or types.is_large_list(kind):
        reader = _reader(kind.value_type)
        return None if reader is None else lambda value: [_read(each, reader) for each in value]
    carrier = _carrier(kind)
    if carrier is None or types.is_dictionary(kind):
        return None
    if carrier == pyarrow.string():
        return lambda text: pyarrow.scalar(text, carrier).cast(kind).as_py()
    return lambda value: value


def _read(value: JSONValue, reader: Callable[[Any], object] | None) -> object:
    return None if value is None or reader is None else reader(value)
