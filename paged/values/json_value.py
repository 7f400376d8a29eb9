"""JSONValue: type of the values in a JSON document, for `isinstance` checks."""

from collections.abc import Mapping
from pathlib import Path

JSONValue = bool | int | float | str | None | list["JSONValue"] | dict[str, "JSONValue"]

ALWAYS_WRITTEN: Mapping[str, bool] = {"always_written": True}
"""Metadata of a dataclass field that `json_fields` writes even if it has its default."""


def plain(value: object) -> JSONValue:
    """Return a value as it comes back from a JSON document: a tuple as a list, a path as its text.

    Raises `TypeError` for what JSON cannot hold.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    raise TypeError(f"JSON cannot represent a {type(value).__name__}")
