"""Dataclasses as JSON: an object with their fields, in the order in which they are declared."""

from dataclasses import fields
from datetime import datetime
from functools import cache
from pathlib import Path


def json_fields(value: object) -> dict[str, object] | str:
    """Return what is written for a value that JSON does not know; for `json.dumps(default=...)`.

    Of a dataclass these are its fields. One that has a default is left out while it has that, so
    that a field which few objects have is a line of the class and of no other object. A path is
    its text, a time in ISO 8601. Raises `TypeError` for anything else.
    """
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    kind: type = type(value)
    named = ((name, getattr(value, name), default) for name, default in _fields(kind))
    return {name: found for name, found, default in named if found != default}


@cache  # looking at a class takes longer than writing a row
def _fields(kind: type) -> tuple[tuple[str, object], ...]:
    """Return names and defaults of a dataclass's fields, `MISSING` for a field without one."""
    return tuple((each.name, each.default) for each in fields(kind))
