"""Recipes and the configuration file: settings of a run from YAML.

Both read the same keys (`Setting`), with messages that name file, line and key. A recipe is the
name of a bundled one or a path; `copy_recipe` copies it with its sample.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pagedrun.paged.values.errors import UsageError, nearest
from pagedrun.recipes.yaml_file import YamlField, parse_fields, read_bytes

FROM_FILE = "@"  # prefix of the path of a file with the text


class Kind(Enum):
    """Type of a setting's value; relative paths start at the folder of the file."""

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
    """Setting of a YAML file.

    `words` are the allowed values, empty for any; `low` is the minimum. `parse` converts the text,
    or raises `ValueError` with the expected form. `refusal` is the reason why a file cannot set it.
    """

    name: str
    kind: Kind
    words: tuple[str, ...] = ()
    low: float | None = None
    parse: Callable[[str], Any] | None = None
    refusal: str | None = None

    def read(self, field: YamlField, folder: Path) -> Any:
        """Return the value in the type of the flag; `UsageError` for an invalid one."""
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
    """Return the path `name` of a file in `folder`, with ~ expanded."""
    path = Path(name)
    with suppress(RuntimeError):  # `~name` of an unknown user is left as it is
        path = path.expanduser()
    return folder / path


def _text_or_file(field: YamlField, folder: Path) -> str:
    """Return the text without the last newline of a YAML block, or `@` and the file's path."""
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


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """File of settings: its path, its name in messages, its text, and value and line of each
    setting."""

    path: Path
    shown: str
    text: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def place(self, name: str) -> str:
        """Return the name of a setting for messages, with file and line."""
        return f"{name} ({self.shown} line {self.lines[name]})"


METADATA_KEYS = ("description", "columns", "sample")  # of the recipe; not settings


@dataclass(frozen=True, slots=True)
class Recipe(SettingsFile):
    """Settings and a prompt, with descriptions of the required columns and a small sample input."""

    sha256: str
    description: str
    columns: Mapping[str, str]
    sample: Path | None

    @classmethod
    def read(
        cls, path: Path, settings: Mapping[str, Setting], shown: str | None = None
    ) -> "Recipe":
        """Read the file at `path`; `settings` are all known settings.

        Raises `UsageError` with file, line and key for an unknown key (and the nearest one), for
        one not allowed in recipes, and for a value of the wrong type. Ranges are checked later, by
        the configurations.
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


def refuse_unset(
    each: YamlField, settings: Mapping[str, Setting], source: str, others: Iterable[str] = ()
) -> None:
    """Raise `UsageError` for an unknown key, and for one not allowed in this kind of file.

    source: the kind of file, for messages. others: further allowed keys.
    """
    setting = settings.get(each.name)
    if setting is None:
        allowed = [name for name, known in settings.items() if known.refusal is None]
        hint = nearest(each.name, [*allowed, *others])
        raise UsageError(f"{each.place}: no such setting{hint or '; see --help of the command'}")
    if setting.refusal is not None:
        raise UsageError(f"{each.place}: cannot be set in {source}, {setting.refusal}")


def _sample(each: YamlField, folder: Path) -> Path:
    path = relative_to(folder, each.text())
    if not os.path.exists(path):
        raise each.error(f"names {path}, which does not exist")
    return path


@dataclass(frozen=True, slots=True)
class ConfigFile(SettingsFile):
    """Configuration file of a user."""

    @classmethod
    def read(cls, path: Path, settings: Mapping[str, Setting]) -> "ConfigFile":
        """Read the file at `path`; `settings` are all known settings.

        Raises `UsageError` with file, line and key for an unknown key (and the nearest one), for
        one not allowed in such files, and for a value of the wrong type.
        """
        return cls._parsed(path, read_bytes(path, str(path)), settings)

    @classmethod
    def of_text(cls, path: Path, text: str, settings: Mapping[str, Setting]) -> "ConfigFile":
        """Parse the earlier contents of the file at `path`; raises as `read`."""
        return cls._parsed(path, text.encode("utf-8", "surrogatepass"), settings)

    @classmethod
    def _parsed(cls, path: Path, content: bytes, settings: Mapping[str, Setting]) -> "ConfigFile":
        fields = parse_fields(content, str(path), may_be_empty=True)
        for each in fields:
            refuse_unset(each, settings, "a configuration file")
        folder = path.absolute().parent
        return cls(
            path=path,
            shown=str(path),
            text=content.decode("utf-8-sig"),
            values={each.name: settings[each.name].read(each, folder) for each in fields},
            lines={each.name: each.line for each in fields},
        )


def config_path() -> Path | None:
    """Return the path of the configuration file, existing or not, by the XDG base directories; None
    without a home folder."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # ignored by the specification
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
    """Return the path of a bundled recipe; `UsageError` for an unknown name."""
    names = bundled_names()
    if name not in names:
        hint = nearest(name, names) or f"; there are {', '.join(names)}"
        raise UsageError(f"{name}: no bundled recipe of this name{hint}")
    return _FOLDER / f"{name}{SUFFIX}"


def find_recipe(name: str) -> tuple[Path, str]:
    """Return the path of a recipe, and its name for messages.

    Names of bundled recipes take precedence; `./NAME` is always a file.
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
    """Copy the recipe and its sample into `folder`, creating it if missing; return the copies.

    Raises `UsageError`, before anything is written, if one of the files exists.
    """
    sources = [recipe.path, *([recipe.sample] if recipe.sample is not None else [])]
    copies = [folder / source.name for source in sources]
    for path in copies:
        if path.is_symlink() or path.exists():
            raise UsageError(f"{path} exists; name another folder, or move the file away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, path in zip(sources, copies, strict=True):
            with path.open("xb") as file:  # x: never replaces a file
                file.write(source.read_bytes())
    except OSError as error:
        name = error.filename or folder
        raise UsageError(f"{name} cannot be written ({error.strerror})") from error
    return copies
