"""`pagedrun recipes`: list, show and copy bundled recipes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.help import CommandLine
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, Display
from pagedrun.cli.terminal.console import note, print_json, stderr_console
from pagedrun.paged.values.flags import Flag

if TYPE_CHECKING:
    from pagedrun.recipes.recipe import Recipe

HELP = """List the bundled recipes, show one, or copy one to edit.

A recipe is a YAML file with settings of `generate`, named like its flags with underscores, and a \
prompt. `generate --recipe NAME` runs a bundled recipe, `generate --recipe FILE` your own.
"""
LIST_HELP = """Describe the bundled recipes and the columns that they need.

Examples:

  pagedrun recipes list
  pagedrun recipes list --json | jq -r '.[].name'
"""
SHOW_HELP = """Print a bundled recipe.

Examples:

  pagedrun recipes show judge
  pagedrun recipes show judge > mine.yaml
"""
INIT_HELP = """Copy a bundled recipe and its sample input into a folder, to edit them there.

Nothing is replaced: if one of the files exists, nothing is copied.

Examples:

  pagedrun recipes init judge
  pagedrun recipes init judge ./my-judge
"""

app = CommandLine(help=HELP, no_args_is_help=True, rich_markup_mode="rich")

RecipeName = Annotated[
    str, typer.Argument(metavar="NAME", help="A bundled recipe: see `pagedrun recipes list`.")
]
_JSON_HELP = "Print JSON on stdout instead."
Json = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """Options of `recipes init`."""

    name: Annotated[
        str,
        Flag("A bundled recipe: see `pagedrun recipes list`.", metavar="NAME", is_argument=True),
    ]
    folder: Annotated[
        Path,
        Flag("Folder to copy to; it is created if missing.", metavar="DIR", is_argument=True),
    ] = Path()
    json_result: Annotated[bool, Flag(_JSON_HELP, declared=("--json",))] = False


@app.command(name="list", help=LIST_HELP)
def list_recipes(json_result: Json = False) -> None:
    """List the bundled recipes."""
    with exits.boundary():
        from pagedrun.cli.report.recipe_text import draw_recipes, facts
        from pagedrun.recipes.recipe import bundled_names

        recipes = {name: _bundled(name) for name in bundled_names()}
        if json_result:
            print_json([facts(name, recipe) for name, recipe in recipes.items()], indent=2)
        else:
            draw_recipes(recipes)


@app.command(name="show", help=SHOW_HELP)
def show(name: RecipeName, json_result: Json = False) -> None:
    """Print a bundled recipe."""
    with exits.boundary():
        from pagedrun.cli.report.recipe_text import draw_text, facts

        recipe = _bundled(name)
        if json_result:
            print_json({**facts(name, recipe), "settings": dict(recipe.values)}, indent=2)
        else:
            draw_text(recipe)


def _init(context: typer.Context, given: TypedValues) -> None:
    """Copy a bundled recipe and its sample to edit."""
    with exits.boundary():
        from pagedrun.cli.options.reading import read
        from pagedrun.cli.report.recipe_text import next_command
        from pagedrun.recipes.recipe import copy_recipe

        options = read(InitOptions, given)
        copies = copy_recipe(_bundled(options.name), options.folder)
        command = next_command(copies)
        if not read(Display, given).quiet:
            console = stderr_console()
            note(console, f"Written: {', '.join(map(str, copies))}")
            note(console, "Edit them, then run:")
        if options.json_result:
            print_json({"files": [str(path) for path in copies], "command": command}, indent=2)
        else:
            print(command)


app.command(name="init", help=INIT_HELP)(
    (Flags.of(InitOptions) + GENERATE.only("quiet")).command(_init)
)


def _bundled(name: str) -> "Recipe":
    from pagedrun.cli.options.settings import recipe_settings
    from pagedrun.recipes.recipe import Recipe, bundled_path

    path = bundled_path(name)
    return Recipe.read(path, recipe_settings(), path.name)
