"""Recipe: the settings of a run, from a YAML file."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagedrun.paged.values.errors import UsageError, nearest
from pagedrun.recipes.setting import Setting, beside
from pagedrun.recipes.yaml_field import YamlField
from pagedrun.recipes.yaml_file import parse_fields, read_bytes

ABOUT = ("description", "columns", "sample")  # keys that describe the recipe and set nothing


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
        given = {name: each for name, each in fields.items() if name not in ABOUT}
        for each in given.values():
            refuse_unset(each, settings, "a recipe", ABOUT)
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
    path = beside(folder, each.text())
    if not os.path.exists(path):
        raise each.error(f"names {path}, which does not exist")
    return path
