"""Settings of a run, from flags, recipe and the user's defaults, each with its origin.

A flag takes precedence over the recipe, the recipe over the environment (`PAGEDRUN_MODEL`), and
that over the configuration file. Imported when a command runs, not at start-up.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import typer

from pagedrun.cli.options.flags import PARSERS, TypedValues, choices_of, plain_type
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.cli.options.reading import read
from pagedrun.paged.job.config import MANIFEST_SUFFIX, SIDE_SUFFIXES, STDOUT, UserDefaults
from pagedrun.paged.job.inputs.input_names import expand
from pagedrun.paged.job.inputs.reader import InputFormat, Reading, inputs_stem
from pagedrun.paged.job.output.manifest import read_defaults
from pagedrun.paged.job.output.output_file import OutputFormat
from pagedrun.paged.values.errors import UsageError, as_flag, option
from pagedrun.paged.values.flags import FlagField, Form
from pagedrun.paged.values.json_value import plain
from pagedrun.paged.values.structure import STRUCTURES
from pagedrun.recipes.recipe import ConfigFile, Kind, Recipe, Setting, config_path, find_recipe

ENVIRONMENT = "environment"
CONFIG_FILE = "config file"
# The settings that variables of the environment set.
VARIABLES = {"model": "PAGEDRUN_MODEL"}


@dataclass(frozen=True, slots=True)
class SettingSource:
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

    def layers(self) -> list[SettingSource]:
        """Return their settings, what counts for less first."""
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


T = TypeVar("T")
_ONE_SCREEN = "as it depends on the machine and the user; pass it as a flag"
# Flags that no recipe sets, and why.
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
# Flags that no configuration file sets, and why. Others than those of recipes are what would change
# files, or leave rows out, without a word on the command line.
NOT_IN_CONFIG_FILE = {
    **dict.fromkeys(NOT_IN_RECIPES, _ONE_RUN),
    **dict.fromkeys(
        ("overwrite", "resume", "retry_errors", "limit", "shards", "report", "html", "deadline"),
        _ONE_RUN,
    ),
}
_KIND_OF_FORM = {
    Form.SIZE: Kind.TEXT,
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
# The first takes the place of what a source that counts for less says of the others: as a flag, of
# what the recipe says.
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
# What belongs to a value of the first goes with it.
_DEPENDENT = {"model": ("revision", "tokenizer")}


def recipe_settings() -> dict[str, Setting]:
    """Return what a recipe may set: the flags of `generate`."""
    return {each.name: _setting(each) for each in GENERATE}


def config_settings() -> dict[str, Setting]:
    """Return what a configuration file may set."""
    return {
        each.name: replace(_setting(each), refusal=NOT_IN_CONFIG_FILE.get(each.name))
        for each in GENERATE
    }


class Settings:
    """What was typed, as flags and in the recipe, and the user's defaults.

    A flag wins over the recipe, the recipe over the environment, and that over the configuration
    file. `read` makes configurations of it. `origins` says where each value is from, by the names
    of the options.
    """

    def __init__(
        self,
        flags: TypedValues,
        recipe: Recipe | None = None,
        defaults: Defaults = NO_DEFAULTS,
        known: Collection[str] | None = None,
    ) -> None:
        """known: what the command takes of the defaults; None for all."""
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
    def of(cls, flags: TypedValues, known: Collection[str] | None = None) -> "Settings":
        """Read the recipe that the flags name, if any, and the user's defaults.

        A run that is resumed keeps the defaults that it had. Raises `UsageError` for what cannot be
        used.
        """
        name = read(RunOptions, flags).recipe
        recipe = None
        if name is not None:
            path, shown = find_recipe(name)
            recipe = Recipe.read(path, recipe_settings(), shown)
        saved = cls(flags, recipe)._saved_defaults()
        settings = config_settings()
        defaults = Defaults.now(settings) if saved is None else Defaults.of_run(saved, settings)
        return cls(flags, recipe, defaults, known)

    def _put(self, source: SettingSource, known: Collection[str] | None = None) -> None:
        """Let the settings of a source take the place of what counts for less."""
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
        """Return the defaults of the run that these settings resume, None if they resume none."""
        if not self.given.get("resume"):
            return None
        output = output_of(self.given)
        return None if output == STDOUT else read_defaults(Path(output + MANIFEST_SUFFIX))

    def read(self, config: type[T], **known: object) -> T:
        """Return a configuration of what was typed and what is known; see `reading.read`."""
        return read(config, self.given, **known)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let an error that names an option name the file's line, if it was set there."""
        try:
            yield
        except UsageError as error:
            error.args = (error.shown(self._spell),)
            raise

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """Let an error that names a value begin with where it is from, if that is no flag."""
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


def _parsed(parse: Callable[[str], float], text: str) -> float:
    """Return what the flags' own parser makes of a text; it raises Typer's errors."""
    try:
        return parse(text)
    except typer.BadParameter as error:
        raise ValueError(error.message) from error


OUTPUT_SUFFIX = ".out.jsonl"


def default_output(inputs: Sequence[str]) -> str:
    """Return where answers go if the user does not say: the inputs' stem, in this folder."""
    return f"{inputs_stem(inputs)}{OUTPUT_SUFFIX}"


def inputs_of(given: TypedValues) -> tuple[str, ...]:
    """Return the inputs, patterns and folders of files expanded."""
    format = InputFormat(str(given.get("input_format", InputFormat.AUTO)))
    return expand(_typed_inputs(given), Reading(format=format), SIDE_SUFFIXES)


def _typed_inputs(given: TypedValues) -> list[str]:
    typed = given["input_name"]
    return [str(each) for each in typed] if isinstance(typed, list) else [str(typed)]


def output_of(given: TypedValues) -> str:
    """Return where answers go; `UsageError` for an ending that no format has."""
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
