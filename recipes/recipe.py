"""Recipes and the configuration file: settings of a run from YAML.

Both read the same keys (`Setting`), with messages that name file, line and key. A recipe is
given by the name of a bundled one or by its path; `copy_recipe` copies it with its sample.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pagedrun.paged.values.errors import UsageError, nearest
from pagedrun.recipes.yaml_file import YamlField, parse_fields, read_bytes

FROM_FILE = "@"  # begins a text that names a file with the value


class Kind(Enum):
    """What a value is. A relative path counts from the folder of the recipe."""

    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    TEXT = "text"
    TEXTS = "texts"
    TEXT_OR_FILE = "text or file"  # text, or @file
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
            case Kind.BOOLEAN:
                return field.switch()
            case Kind.TEXT:
                return field.text()
            case Kind.TEXTS:
                return field.texts()
            case Kind.TEXT_OR_FILE:
                return _text_or_file(field, folder)
            case Kind.MODEL:
                return _model(field.text(), folder)
            case Kind.JSON:
                return field.json()
            case Kind.PATH:
                return relative_to(folder, field.text())


def relative_to(folder: Path, name: str) -> Path:
    """Return the path that `name` means in a recipe in `folder`."""
    path = Path(name)
    with suppress(RuntimeError):  # `~name` of an unknown user is left as it is
        path = path.expanduser()
    return folder / path


def _text_or_file(field: YamlField, folder: Path) -> str:
    """Return the text without the newline that ends a block of YAML, or `@` and the file's path."""
    text = field.text()
    if not text.startswith(FROM_FILE):
        return text.removesuffix("\n")
    path = relative_to(folder, text[len(FROM_FILE) :].strip())
    if not os.path.isfile(path):
        raise field.error(f"names {path}, which is not a file")
    return f"{FROM_FILE}{path}"


def _model(name: str, folder: Path) -> str:
    """Return the folder of this name relative to the recipe, else the name, of a hub model."""
    path = relative_to(folder, name)
    return str(path) if os.path.isdir(path) or name.startswith(("./", "../")) else name


METADATA_KEYS = (
    "description",
    "columns",
    "sample",
)  # keys that describe the recipe and set nothing


@dataclass(frozen=True, slots=True)
class Recipe:
    """`values` maps the settings to values as their flags would have them, `lines` to their lines.

    `shown` is the recipe as messages name it, `text` the file's. `columns` says what the recipe
    wants of a row, name by name, `sample` is a small input for it.
    """

    path: Path
    shown: str
    text: str
    sha256: str
    description: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    sample: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(
        cls, path: Path, settings: Mapping[str, Setting], shown: str | None = None
    ) -> "Recipe":
        """Read the file at `path`; `settings` are those there are.

        Raises `UsageError` with file, line and key for a key that is no setting (and the nearest
        one), for one that a recipe may not set, and for a value of the wrong type. Ranges are for
        those who use the values to check.
        """
        shown = shown or str(path)
        content = read_bytes(path, f"--recipe {shown}")
        fields = {each.name: each for each in parse_fields(content, shown)}
        given = {name: each for name, each in fields.items() if name not in METADATA_KEYS}
        for each in given.values():
            refuse_unset(each, settings, "a recipe", METADATA_KEYS)
        folder = path.absolute().parent
        description = fields["description"].text().strip() if "description" in fields else ""
        return cls(
            path=path,
            shown=shown,
            text=content.decode("utf-8-sig"),
            sha256=hashlib.sha256(content).hexdigest(),
            description=" ".join(description.split()),
            columns=fields["columns"].mapping() if "columns" in fields else {},
            sample=_sample(fields["sample"], folder) if "sample" in fields else None,
            values={name: settings[name].read(each, folder) for name, each in given.items()},
            lines={name: each.line for name, each in given.items()},
        )

    def place(self, name: str) -> str:
        """Return how messages name a setting of this recipe."""
        return f"{name} ({self.shown} line {self.lines[name]})"


def refuse_unset(
    each: YamlField, settings: Mapping[str, Setting], source: str, others: Iterable[str] = ()
) -> None:
    """Raise `UsageError` for a key that is no setting, or none for such a file to set.

    source: what the file is. others: further keys that it may have.
    """
    setting = settings.get(each.name)
    if setting is None:
        allowed = [name for name, known in settings.items() if known.refusal is None]
        hint = nearest(each.name, [*allowed, *others])
        raise UsageError(f"{each.place}: no such setting{hint or '; see generate --help'}")
    if setting.refusal is not None:
        raise UsageError(f"{each.place}: cannot be set in {source}, {setting.refusal}")


def _sample(each: YamlField, folder: Path) -> Path:
    path = relative_to(folder, each.text())
    if not os.path.exists(path):
        raise each.error(f"names {path}, which does not exist")
    return path


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """`values` maps the settings to values as their flags would have them, `lines` to their lines;
    `text` is the file's.
    """

    path: Path
    text: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    @classmethod
    def read(cls, path: Path, settings: Mapping[str, Setting]) -> "ConfigFile":
        """Read the file at `path`; `settings` are those there are.

        Raises `UsageError` with file, line and key for a key that is no setting (and the nearest
        one), for one that no such file may set, and for a value of the wrong type.
        """
        return cls._parsed(path, read_bytes(path, str(path)), settings)

    @classmethod
    def of_text(cls, path: Path, text: str, settings: Mapping[str, Setting]) -> "ConfigFile":
        """Read what was in the file at `path` once; raises as `read` does."""
        return cls._parsed(path, text.encode("utf-8", "surrogatepass"), settings)

    @classmethod
    def _parsed(cls, path: Path, content: bytes, settings: Mapping[str, Setting]) -> "ConfigFile":
        fields = parse_fields(content, str(path), may_be_empty=True)
        for each in fields:
            refuse_unset(each, settings, "a configuration file")
        folder = path.absolute().parent
        return cls(
            path=path,
            text=content.decode("utf-8-sig"),
            values={each.name: settings[each.name].read(each, folder) for each in fields},
            lines={each.name: each.line for each in fields},
        )

    def place(self, name: str) -> str:
        """Return how messages name a setting of this file."""
        return f"{name} ({self.path} line {self.lines[name]})"


def config_path() -> Path | None:
    """Return where the configuration file is, or would be, by the XDG base directories; None
    without a home folder.
    """
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the specification ignores it then
        try:
            base = Path.home() / ".config"
        except RuntimeError:
            return None
    return base / "pagedrun" / "config.yaml"


_FOLDER = Path(__file__).parent / "bundled"
SUFFIX = ".yaml"


def bundled_names() -> list[str]:
    """Return the names of the bundled recipes, in order."""
    return sorted(path.stem for path in _FOLDER.glob(f"*{SUFFIX}"))


def bundled_path(name: str) -> Path:
    """Return the file of a bundled recipe; `UsageError` if there is none of this name."""
    names = bundled_names()
    if name not in names:
        hint = nearest(name, names) or f"; there are {', '.join(names)}"
        raise UsageError(f"{name}: no bundled recipe of this name{hint}")
    return _FOLDER / f"{name}{SUFFIX}"


def find_recipe(name: str) -> tuple[Path, str]:
    """Return the file that `name` names, and how messages name it.

    The name of a bundled recipe is that recipe; `./NAME` is a file in any case.
    """
    if name in bundled_names():
        return _FOLDER / f"{name}{SUFFIX}", f"{name}{SUFFIX}"
    path = Path(name).expanduser()
    if path.is_dir():
        raise UsageError(f"--recipe {name} is a folder; name the YAML file in it")
    if not path.exists():
        names = bundled_names()
        hint = nearest(name, names) or f"; the bundled ones are {', '.join(names)}"
        raise UsageError(f"--recipe {name}: no such file, and no bundled recipe{hint}")
    return path, name


def copy_recipe(recipe: Recipe, folder: Path) -> list[Path]:
    """Copy the recipe, then its sample, into `folder`, which is made if need be.

    Returns the paths of the copies. Raises `UsageError`, before anything is written, if one of the
    files is there already.
    """
    sources = [recipe.path, *([recipe.sample] if recipe.sample is not None else [])]
    copies = [folder / source.name for source in sources]
    for path in copies:
        if path.is_symlink() or path.exists():
            raise UsageError(f"{path} exists; name another folder, or move the file away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, path in zip(sources, copies, strict=True):
            with path.open("xb") as file:  # x: never over another's file
                file.write(source.read_bytes())
    except OSError as error:
        name = error.filename or folder
        raise UsageError(f"{name} cannot be written ({error.strerror})") from error
    return copies
