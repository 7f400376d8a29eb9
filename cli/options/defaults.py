"""Defaults of the user's: `PAGEDRUN_MODEL`, and the configuration file."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from pagedrun.paged.job.config import UserDefaults
from pagedrun.paged.values.errors import UsageError, as_flag
from pagedrun.paged.values.json_value import plain
from pagedrun.recipes.config_file import ConfigFile, config_path
from pagedrun.recipes.setting import Setting

ENVIRONMENT = "environment"
CONFIG_FILE = "config file"
# The settings that variables of the environment set.
VARIABLES = {"model": "PAGEDRUN_MODEL"}


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one place: `origin` is what manifests call it, `place` how messages name a
    setting of it.
    """

    origin: str
    values: Mapping[str, Any]
    place: Callable[[str], str]


class DefaultFacts(TypedDict):
    """What `doctor` says of them: the file's path, whether it is there, and what is set."""

    path: str | None
    there: bool
    values: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Defaults:
    """The configuration file, None without one, and the variables that are set, by their names."""

    file: ConfigFile | None
    environment: Mapping[str, str]

    @classmethod
    def now(cls, settings: Mapping[str, Setting]) -> "Defaults":
        """Read them; `settings` are those that the file may hold.

        Raises `UsageError` with file, line and key for what it may not hold.
        """
        path, found = config_path(), _environment()
        if path is None or not os.path.lexists(path):
            return cls(None, found)
        return cls(ConfigFile.read(path, settings), found)

    @classmethod
    def of_run(cls, saved: UserDefaults, settings: Mapping[str, Setting]) -> "Defaults":
        """Return those that a run had; raises as `now` does."""
        if saved.config_path is None:
            return cls(None, saved.environment)
        file = ConfigFile.of_text(Path(saved.config_path), saved.config_text, settings)
        return cls(file, saved.environment)

    @property
    def saved(self) -> UserDefaults:
        """What a manifest keeps of them."""
        if self.file is None:
            return UserDefaults(environment=self.environment)
        return UserDefaults(str(self.file.path), self.file.text, self.environment)

    def layers(self) -> list[Layer]:
        """Return their settings, what counts for less first."""
        values = {
            name: self.environment[variable]
            for name, variable in VARIABLES.items()
            if variable in self.environment
        }
        environment = Layer(ENVIRONMENT, values, VARIABLES.__getitem__)
        if self.file is None:
            return [environment]
        return [Layer(CONFIG_FILE, self.file.values, self.file.place), environment]


NO_DEFAULTS = Defaults(None, {})


def default_facts(settings: Mapping[str, Setting]) -> tuple[DefaultFacts, str | None]:
    """Return what `doctor` says of the defaults, and what is broken about them."""
    path = config_path()
    found: DefaultFacts = {
        "path": None if path is None else str(path),
        "there": path is not None and os.path.lexists(path),
        "values": {},
        "environment": _environment(),
    }
    try:
        file = Defaults.now(settings).file
    except UsageError as error:
        return found, f"{error.shown(as_flag)}: until it is corrected, runs are refused"
    values = {} if file is None else {name: plain(each) for name, each in file.values.items()}
    return {**found, "values": values}, None


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES.values() if os.environ.get(name)}
