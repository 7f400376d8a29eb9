"""Settings of a run, from flags, recipe and the user's defaults, each with its origin.

Precedence: flag, recipe, environment (`PAGEDRUN_MODEL`), configuration file. Imported when a
command runs, not at start-up.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import typer

from pagedrun.cli.options.flags import PARSERS, Flags, TypedValues, choices_of, plain_type
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.cli.options.reading import read
from pagedrun.paged.job.config import MANIFEST_SUFFIX, SIDE_SUFFIXES, STDOUT, UserDefaults
from pagedrun.paged.job.inputs.input_names import expand
from pagedrun.paged.job.inputs.reader import InputFormat, Reading, inputs_stem
from pagedrun.paged.job.output.manifest import find_manifest
from pagedrun.paged.job.output.output_file import OutputFormat
from pagedrun.paged.values.errors import UsageError, as_flag, option
from pagedrun.paged.values.flags import FlagField, Form
from pagedrun.paged.values.json_value import plain
from pagedrun.paged.values.structure import STRUCTURES
from pagedrun.recipes.recipe import ConfigFile, Kind, Recipe, Setting, config_path, find_recipe

ENVIRONMENT = "environment"
CONFIG_FILE = "config file"
# Settings with an environment variable.
VARIABLES = {"model": "PAGEDRUN_MODEL"}


@dataclass(frozen=True, slots=True)
class SettingSource:
    """Settings of one source.

    `origin` is its name in manifests; `place` returns the name of a setting for messages.
    """

    origin: str
    values: Mapping[str, Any]
    place: Callable[[str], str]


class DefaultFacts(TypedDict):
    """Defaults as shown by `doctor`; `there` tells whether the file exists."""

    path: str | None
    there: bool
    values: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Defaults:
    """Configuration file, None without one, and environment variables, by name."""

    file: ConfigFile | None
    environment: Mapping[str, str]

    @classmethod
    def now(cls, settings: Mapping[str, Setting]) -> "Defaults":
        """Read the current defaults; `settings` are the settings allowed in the file.

        Raises `UsageError` with file, line and key for any other.
        """
        path, found = config_path(), _environment()
        if path is None or not os.path.lexists(path):
            return cls(None, found)
        return cls(ConfigFile.read(path, settings), found)

    @classmethod
    def of_run(cls, saved: UserDefaults, settings: Mapping[str, Setting]) -> "Defaults":
        """Return the defaults saved in the manifest of a run; raises as `now`."""
        if saved.config_path is None:
            return cls(None, saved.environment)
        file = ConfigFile.of_text(Path(saved.config_path), saved.config_text, settings)
        return cls(file, saved.environment)

    @property
    def saved(self) -> UserDefaults:
        """Defaults for the manifest."""
        if self.file is None:
            return UserDefaults(environment=self.environment)
        return UserDefaults(str(self.file.path), self.file.text, self.environment)

    def layers(self) -> list[SettingSource]:
        """Return the sources in ascending precedence."""
        values = {
            name: self.environment[variable]
            for name, variable in VARIABLES.items()
            if variable in self.environment
        }
        environment = SettingSource(ENVIRONMENT, values, VARIABLES.__getitem__)
        if self.file is None:
            return [environment]
        return [SettingSource(CONFIG_FILE, self.file.values, self.file.place), environment]


NO_DEFAULTS = Defaults(None, {})


def default_facts(settings: Mapping[str, Setting]) -> tuple[DefaultFacts, str | None]:
    """Return the defaults for `doctor`, and an error message or None."""
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


T = TypeVar("T")
_ONE_SCREEN = "as it depends on the machine and the user; pass it as a flag"
# Flags not allowed in recipes, with the reason.
NOT_IN_RECIPES = {
    "input_name": "as it is the command's argument; set `sample` to an example input",
    "output": "as it names a file of a single run; pass it as a flag",
    "out_dir": "as it names the folder of a single run; pass it as a flag",
    "columns": "as `columns` in a recipe means the columns of its rows; pass it as a flag",
    "from_output": "as it names a file of a single run; pass it as a flag",
    "recipe": "as recipes do not nest",
    "json_report": _ONE_SCREEN,
    "quiet": _ONE_SCREEN,
}
_ONE_RUN = "as it is about one run; pass it as a flag"
# Flags not allowed in configuration files, with the reason: also those that would silently change
# files or omit rows.
NOT_IN_CONFIG_FILE = {
    **dict.fromkeys(NOT_IN_RECIPES, _ONE_RUN),
    **dict.fromkeys(
        ("overwrite", "resume", "retry_errors", "limit", "shards", "report", "html", "deadline"),
        _ONE_RUN,
    ),
}
_KIND_OF_FORM = {
    Form.SIZE: Kind.TEXT,
    Form.SIZE_OR_AUTO: Kind.TEXT,
    Form.SPAN: Kind.TEXT,
    Form.PROSE: Kind.TEXT_OR_FILE,
    Form.TEMPLATE: Kind.TEXT_OR_FILE,
    Form.MODEL: Kind.MODEL,
    Form.IDS: Kind.TEXTS,
    Form.JSON: Kind.JSON,
}
_KIND_OF_TYPE: dict[object, Kind] = {
    int: Kind.INTEGER,
    float: Kind.NUMBER,
    bool: Kind.BOOLEAN,
    str: Kind.TEXT,
    Path: Kind.PATH,
    list[str]: Kind.TEXTS,
}
# A key replaces values of the listed settings that come from sources of lower precedence.
_OVERRIDES = {
    "prompt_field": ("prompt_template",),
    "prompt_template": ("prompt_field",),
    "kv_cache_memory_bytes": ("num_blocks",),
    "resume": ("overwrite",),
    "overwrite": ("resume", "retry_errors"),
    "shape": ("model", "revision"),  # of bench
    "layers": ("model", "revision"),
    **{name: tuple(each for each in STRUCTURES if each != name) for name in STRUCTURES},
}
# Settings replaced together with the key.
_DEPENDENT = {"model": ("revision", "tokenizer")}


def recipe_settings(flags: Flags = GENERATE) -> dict[str, Setting]:
    """Return the settings of recipes for a command: its flags, by default those of `generate`."""
    return {each.name: _setting(each) for each in flags}


def config_settings() -> dict[str, Setting]:
    """Return the settings of configuration files."""
    return {
        each.name: replace(_setting(each), refusal=NOT_IN_CONFIG_FILE.get(each.name))
        for each in GENERATE
    }


class Settings:
    """Values of flags, recipe and the user's defaults, merged by precedence.

    `given` has the values and `origins` their sources, both by option name.
    """

    def __init__(
        self,
        flags: TypedValues,
        recipe: Recipe | None = None,
        defaults: Defaults = NO_DEFAULTS,
        known: Collection[str] | None = None,
    ) -> None:
        """Merge the sources; `known` limits the defaults to settings of the command, None to
        none."""
        self.recipe = recipe
        self.defaults = defaults
        self._places: dict[str, Callable[[str], str]] = {}
        self.given: dict[str, object] = {}
        self.origins: dict[str, str] = {}
        for source in defaults.layers():
            self._put(source, known)
        if recipe is not None:
            self._put(SettingSource("recipe", recipe.values, recipe.place))
        self._put(SettingSource("flag", flags, as_flag))

    @classmethod
    def of(
        cls,
        flags: TypedValues,
        known: Collection[str] | None = None,
        *,
        of_recipe: Flags = GENERATE,
    ) -> "Settings":
        """Read the recipe named by the flags, if any, and the user's defaults.

        of_recipe: flags that a recipe may set. A resumed run keeps its own defaults. Raises
        `UsageError` for invalid settings.
        """
        name = read(RunOptions, flags).recipe
        recipe = None
        if name is not None:
            path, shown = find_recipe(name)
            recipe = Recipe.read(path, recipe_settings(of_recipe), shown)
        saved = cls(flags, recipe)._saved_defaults()
        settings = config_settings()
        defaults = Defaults.now(settings) if saved is None else Defaults.of_run(saved, settings)
        return cls(flags, recipe, defaults, known)

    def _put(self, source: SettingSource, known: Collection[str] | None = None) -> None:
        """Merge a source over those of lower precedence."""
        values = {
            name: value for name, value in source.values.items() if known is None or name in known
        }
        below = dict(self.given)
        for name in values:
            others = _OVERRIDES.get(name, ())
            if name in below:
                others += (name, *_DEPENDENT.get(name, ()))
            for other in others:
                self.given.pop(other, None)
                self.origins.pop(other, None)
        self.given |= values
        self.origins |= dict.fromkeys(values, source.origin)
        self._places[source.origin] = source.place

    def _saved_defaults(self) -> UserDefaults | None:
        """Return the defaults of the resumed run, None without `--resume`."""
        if not self.given.get("resume"):
            return None
        output = output_of(self.given)
        saved = None if output == STDOUT else find_manifest(Path(output + MANIFEST_SUFFIX))
        return None if saved is None else saved.defaults

    def read(self, config: type[T], **known: object) -> T:
        """Return a configuration of these settings; see `reading.read`."""
        return read(config, self.given, **known)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Replace option names in errors by file and line, if a file has set them."""
        try:
            yield
        except UsageError as error:
            error.args = (error.shown(self._spell),)
            raise

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """Prefix errors about the value of `name` with its source, unless that is a flag."""
        try:
            yield
        except UsageError as error:
            if self.origins.get(name, "flag") != "flag":
                error.args = (f"{self._spell(name)}: {error.marked}",)
            raise

    def _spell(self, name: str) -> str:
        setting = name.removesuffix("=False")
        origin = self.origins.get(setting, "flag")
        return as_flag(name) if origin == "flag" else self._places[origin](setting)


def _setting(field: FlagField) -> Setting:
    words, form = choices_of(field), field.flag.form
    kind = Kind.TEXT if words else _KIND_OF_FORM.get(form) or _KIND_OF_TYPE[plain_type(field)]
    return Setting(
        name=field.name,
        kind=kind,
        words=words,
        low=field.flag.low,
        parse=partial(_parsed, PARSERS[form]) if form in PARSERS else None,
        refusal=NOT_IN_RECIPES.get(field.name),
    )


def _parsed(parse: Callable[[str], float | str], text: str) -> float | str:
    """Call the parser of a flag; Typer's error becomes `ValueError`."""
    try:
        return parse(text)
    except typer.BadParameter as error:
        raise ValueError(error.message) from error


OUTPUT_SUFFIX = ".out.jsonl"


def default_output(inputs: Sequence[str]) -> str:
    """Return the default output: the inputs' stem, in the current folder."""
    return f"{inputs_stem(inputs)}{OUTPUT_SUFFIX}"


def inputs_of(given: TypedValues) -> tuple[str, ...]:
    """Return the inputs, with patterns and folders expanded."""
    format = InputFormat(str(given.get("input_format", InputFormat.AUTO)))
    return expand(_typed_inputs(given), Reading(format=format), SIDE_SUFFIXES)


def _typed_inputs(given: TypedValues) -> list[str]:
    typed = given["input_name"]
    return [str(each) for each in typed] if isinstance(typed, list) else [str(typed)]


def output_of(given: TypedValues) -> str:
    """Return the output path; `UsageError` for an unknown suffix."""
    typed = _typed_inputs(given)
    is_folder = len(typed) == 1 and Path(typed[0]).is_dir()
    output = str(given.get("output") or default_output(typed if is_folder else inputs_of(given)))
    folder = given.get("out_dir")
    if output != STDOUT:
        OutputFormat.of(output)
    if folder is None:
        return output
    if output == STDOUT or Path(output).name != output:
        raise UsageError(
            f"{option('out_dir')} names the folder of all files: with it, -o takes a name without "
            f"one, not {output}",
            field="out_dir",
        )
    return str(Path(str(folder), output))
