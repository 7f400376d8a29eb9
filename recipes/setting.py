"""Setting: one thing that a recipe may set, and what its value must be."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pagedrun.recipes.yaml_field import YamlField

FROM_FILE = "@"  # begins a text that names a file with the value


class Kind(Enum):
    """What a value is. A relative path counts from the folder of the recipe."""

    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "switch"
    TEXT = "text"
    TEXTS = "texts"
    PROSE = "prose"  # text, or @file
    MODEL = "model"  # a folder, or a name on the hub
    PATH = "path"
    JSON = "json"  # JSON, or YAML of the same


@dataclass(frozen=True, slots=True)
class Setting:
    """`words` are the values allowed, if only some are; `low` is the least number.

    `parse` makes the value out of the text, and raises `ValueError` saying what it wants.
    `refusal` says why no recipe may set it, where that is so.
    """

    name: str
    kind: Kind
    words: tuple[str, ...] = ()
    low: float | None = None
    parse: Callable[[str], Any] | None = None
    refusal: str | None = None

    def read(self, field: YamlField, folder: Path) -> Any:
        """Return the value as the flag of this name would have it; `UsageError` if it is unfit."""
        value = self._value(field, folder)
        if self.words and value not in self.words:
            raise field.error(f"is {value!r}; choose one of {', '.join(self.words)}")
        if self.low is not None and value < self.low:
            raise field.error(f"is {value:g}; it must be at least {self.low:g}")
        if self.parse is not None:
            try:
                return self.parse(value)
            except ValueError as error:
                raise field.error(f"is {value!r}; {error}") from error
        return value

    def _value(self, field: YamlField, folder: Path) -> Any:
        match self.kind:
            case Kind.INTEGER:
                return field.integer()
            case Kind.NUMBER:
                return field.number()
            case Kind.SWITCH:
                return field.switch()
            case Kind.TEXT:
                return field.text()
            case Kind.TEXTS:
                return field.texts()
            case Kind.PROSE:
                return _prose(field, folder)
            case Kind.MODEL:
                return _model(field.text(), folder)
            case Kind.JSON:
                return field.json()
            case Kind.PATH:
                return beside(folder, field.text())


def beside(folder: Path, name: str) -> Path:
    """Return the path that `name` means in a recipe in `folder`."""
    path = Path(name)
    with suppress(RuntimeError):  # `~name` of an unknown user is left as it is
        path = path.expanduser()
    return folder / path


def _prose(field: YamlField, folder: Path) -> str:
    """Return the text without the newline that ends a block of YAML, or `@` and the file's path."""
    text = field.text()
    if not text.startswith(FROM_FILE):
        return text.removesuffix("\n")
    path = beside(folder, text[len(FROM_FILE) :].strip())
    if not os.path.isfile(path):
        raise field.error(f"names {path}, which is not a file")
    return f"{FROM_FILE}{path}"


def _model(name: str, folder: Path) -> str:
    """Return the folder of this name beside the recipe, or the name itself: the hub may know it."""
    path = beside(folder, name)
    return str(path) if os.path.isdir(path) or name.startswith(("./", "../")) else name
