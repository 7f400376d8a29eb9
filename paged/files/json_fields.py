"""Dataclasses as JSON: an object with their fields, in the order in which they are declared."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def json_fields(value: "DataclassInstance | Path") -> dict[str, object] | str:
    """Return what is written for a value that JSON does not know; for `json.dumps(default=...)`.

    Of a dataclass these are its fields. One that has a default is left out while it has that, so
    that a field which few objects have is a line of the class and of no other object. A path is
    its text.
    """
    if isinstance(value, Path):
        return str(value)
    named = ((each, getattr(value, each.name)) for each in fields(value))
    return {each.name: found for each, found in named if found != each.default}
