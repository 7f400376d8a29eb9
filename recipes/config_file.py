"""ConfigFile: the user's defaults for all runs, `~/.config/pagedrun/config.yaml`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedrun.recipes.recipe import refuse_unset
from pagedrun.recipes.setting import Setting
from pagedrun.recipes.yaml_file import parse_fields, read_bytes


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
