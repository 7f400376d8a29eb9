"""Settings: what decides a run, from flags and recipe, and where each came from."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.option_names import as_flag
from pagedrun.recipes.library import find_recipe
from pagedrun.recipes.recipe import Recipe
from pagedrun.recipes.setting import Kind, Setting

_ONE_SCREEN = "as it is for whoever runs it to say; pass it as a flag"
# Flags that no recipe sets, and why.
REFUSED = {
    "input_name": "as it is the command's argument; `sample` names an input to try it on",
    "output": "as it is the file of one run; pass it as a flag",
    "recipe": "as recipes do not nest",
    "json_report": _ONE_SCREEN,
    "quiet": _ONE_SCREEN,
}
_KINDS = {
    "model": Kind.MODEL,
    "tokenizer": Kind.MODEL,
    "system": Kind.PROSE,
    "prompt_template": Kind.PROSE,
    "chat_template": Kind.PROSE,
}
_KIND_OF_TYPE: dict[Any, Kind] = {
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
    """Return what a recipe may set: the flags of `generate`, read from where Typer reads them."""
    from pagedrun.cli.generate import generate

    hints = get_type_hints(generate, include_extras=True)
    return {
        name: _setting(name, *get_args(hint))
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
    }


class Settings:
    """`values` maps flag names, with underscores, to values; a flag wins over the recipe.

    `origins` says which of the two each value is from.
    """

    def __init__(self, flags: Mapping[str, Any], recipe: Recipe | None = None) -> None:
        ours = dict(recipe.values) if recipe is not None else {}
        for flag in flags:
            others = _TAKES_THE_PLACE_OF.get(flag, ())
            if flag in ours:
                others += (flag, *_BELONGS_TO.get(flag, ()))
            for name in others:
                ours.pop(name, None)
        self.recipe = recipe
        self.values: dict[str, Any] = {**ours, **flags}
        self.origins = {**dict.fromkeys(ours, "recipe"), **dict.fromkeys(flags, "flag")}

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> "Settings":
        """Read the recipe that the flags name, if any; `UsageError` if it cannot be used."""
        if "recipe" not in flags:
            return cls(flags)
        path, shown = find_recipe(flags["recipe"])
        return cls(flags, Recipe.read(path, recipe_settings(), shown))

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


def _setting(name: str, annotation: Any, *metadata: Any) -> Setting:
    info = next(each for each in metadata if hasattr(each, "param_decls"))
    options = [each for each in get_args(annotation) if each is not NoneType]
    kind_of: Any = options[0] if NoneType in get_args(annotation) else annotation
    words: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = info.parser and partial(_parsed, info.parser)
    if isinstance(kind_of, type) and issubclass(kind_of, StrEnum):
        words, parse, kind_of = tuple(kind_of), kind_of, str
    return Setting(
        name=name,
        kind=Kind.TEXT if parse is not None else _KINDS.get(name) or _KIND_OF_TYPE[kind_of],
        words=words,
        low=info.min,
        parse=parse,
        refusal=REFUSED.get(name),
    )


def _parsed(parser: Any, text: str) -> Any:
    """Return what a flag's own parser makes of a text; it raises Typer's errors."""
    try:
        return parser(text)
    except typer.BadParameter as error:
        raise ValueError(error.message) from error
