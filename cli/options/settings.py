"""Settings: what decides a run, from flags and recipe, and where each came from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer

from pagedrun.cli.options.flags import PARSERS, Given, plain_type, words_of
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.cli.options.reading import read
from pagedrun.cli.options.run_options import RunOptions
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.flag import FlagField, Form
from pagedrun.paged.values.option_names import as_flag
from pagedrun.recipes.library import find_recipe
from pagedrun.recipes.recipe import Recipe
from pagedrun.recipes.setting import Kind, Setting

T = TypeVar("T")
_ONE_SCREEN = "as it is for whoever runs it to say; pass it as a flag"
# Flags that no recipe sets, and why.
REFUSED = {
    "input_name": "as it is the command's argument; `sample` names an input to try it on",
    "output": "as it is the file of one run; pass it as a flag",
    "out_dir": "as it is the folder of one run; pass it as a flag",
    "columns": "as `columns` of a recipe are those of its rows; pass it as a flag",
    "from_output": "as it names the file of one run; pass it as a flag",
    "recipe": "as recipes do not nest",
    "json_report": _ONE_SCREEN,
    "quiet": _ONE_SCREEN,
}
_KIND_OF_FORM = {
    Form.SIZE: Kind.TEXT,
    Form.SPAN: Kind.TEXT,
    Form.PROSE: Kind.PROSE,
    Form.TEMPLATE: Kind.PROSE,
    Form.MODEL: Kind.MODEL,
    Form.IDS: Kind.TEXTS,
    Form.JSON: Kind.JSON,
}
_KIND_OF_TYPE: dict[object, Kind] = {
    int: Kind.INTEGER,
    float: Kind.NUMBER,
    bool: Kind.SWITCH,
    str: Kind.TEXT,
    Path: Kind.PATH,
    list[str]: Kind.TEXTS,
}
# Given as a flag, the first takes the place of what a recipe says of the others.
_TAKES_THE_PLACE_OF = {
    "prompt_field": ("prompt_template",),
    "prompt_template": ("prompt_field",),
    "kv_cache_memory_bytes": ("num_blocks",),
    "resume": ("overwrite",),
    "overwrite": ("resume", "retry_errors"),
}
# What belongs to a recipe's own value of the first goes with it.
_BELONGS_TO = {"model": ("revision", "tokenizer")}


def recipe_settings() -> dict[str, Setting]:
    """Return what a recipe may set: the flags of `generate`."""
    return {each.name: _setting(each) for each in GENERATE}


class Settings:
    """What was typed, as flags and in the recipe; a flag wins. `read` makes configurations of it.

    `origins` says which of the two each value is from, by the names of the options.
    """

    def __init__(self, flags: Given, recipe: Recipe | None = None) -> None:
        ours = dict(recipe.values) if recipe is not None else {}
        for flag in flags:
            others = _TAKES_THE_PLACE_OF.get(flag, ())
            if flag in ours:
                others += (flag, *_BELONGS_TO.get(flag, ()))
            for name in others:
                ours.pop(name, None)
        self.recipe = recipe
        self.given: Given = {**ours, **flags}
        self.origins = {**dict.fromkeys(ours, "recipe"), **dict.fromkeys(flags, "flag")}

    @classmethod
    def of(cls, flags: Given) -> "Settings":
        """Read the recipe that the flags name, if any; `UsageError` if it cannot be used."""
        name = read(RunOptions, flags).recipe
        if name is None:
            return cls(flags)
        path, shown = find_recipe(name)
        return cls(flags, Recipe.read(path, recipe_settings(), shown))

    def read(self, config: type[T], **known: object) -> T:
        """Return a configuration of what was typed and what is known; see `reading.read`."""
        return read(config, self.given, **known)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let an error that names an option name the recipe's line, if it was set there."""
        try:
            yield
        except UsageError as error:
            error.args = (error.shown(self._spell),)
            raise

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """Let an error that names a value begin with the recipe's line, if it was set there."""
        try:
            yield
        except UsageError as error:
            if self.recipe is not None and self.origins.get(name) == "recipe":
                error.args = (f"{self.recipe.place(name)}: {error.marked}",)
            raise

    def _spell(self, name: str) -> str:
        setting = name.removesuffix("=False")
        if self.recipe is None or self.origins.get(setting) != "recipe":
            return as_flag(name)
        return self.recipe.place(setting)


def _setting(field: FlagField) -> Setting:
    words, form = words_of(field), field.flag.form
    kind = Kind.TEXT if words else _KIND_OF_FORM.get(form) or _KIND_OF_TYPE[plain_type(field)]
    return Setting(
        name=field.name,
        kind=kind,
        words=words,
        low=field.flag.low,
        parse=partial(_parsed, PARSERS[form]) if form in PARSERS else None,
        refusal=REFUSED.get(field.name),
    )


def _parsed(parse: Callable[[str], float], text: str) -> float:
    """Return what the flags' own parser makes of a text; it raises Typer's errors."""
    try:
        return parse(text)
    except typer.BadParameter as error:
        raise ValueError(error.message) from error
