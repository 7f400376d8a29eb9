"""Rows as CSV: a header, then a record for each row."""

from collections.abc import Iterable, Iterator, Sequence

from pagedrun.paged.job.output.formats.row_parts import OutputColumns
from pagedrun.paged.job.output.formats.value_type import json_text
from pagedrun.paged.values.json_value import JSONValue


def column_names(rows: Iterable[OutputColumns]) -> list[str]:
    """Return the columns of all rows, in the order in which they come."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_lines(rows: Iterable[OutputColumns], names: Sequence[str]) -> Iterator[bytes]:
    """Yield the header and each row's record, in UTF-8, each with its newline.

    Quotes are those of RFC 4180. Text is quoted, so that an empty one differs from null, which is
    an empty cell; lists and objects are their JSON text.
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
