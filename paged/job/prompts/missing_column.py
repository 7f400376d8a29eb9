"""A column that a template needs and a row does not have: an error that knows its name."""

from functools import partial
from typing import Any

from jinja2 import StrictUndefined, UndefinedError
from jinja2.utils import missing


class MissingColumn(UndefinedError):
    """A template used a name that is no column of the row."""

    def __init__(self, name: str, message: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class NamedUndefined(StrictUndefined):
    """What Jinja puts in place of what is not there; using a name raises `MissingColumn`."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: str | None = None,
        exc: Any = UndefinedError,
    ) -> None:
        if obj is missing and name is not None:
            exc = partial(MissingColumn, name)
        super().__init__(hint, obj, name, exc)
