"""Screen of `recipes`: their table, one recipe in colors, and the command that runs one."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from rich.style import Style
from rich.table import Table
from rich.text import Text

from pagedrun.cli.terminal.console import stdout_console
from pagedrun.recipes.recipe import Recipe


class Facts(TypedDict):
    """Facts about a recipe, for `--json`."""

    name: str
    description: str
    columns: dict[str, str]
    path: str
    sample: str | None


def facts(name: str, recipe: Recipe) -> Facts:
    """Return the facts about a recipe."""
    return {
        "name": name,
        "description": recipe.description,
        "columns": dict(recipe.columns),
        "path": str(recipe.path),
        "sample": None if recipe.sample is None else str(recipe.sample),
    }


def draw_recipes(recipes: Mapping[str, Recipe]) -> None:
    """Print the table of recipes on stdout."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("recipe", no_wrap=True, style="bold")
    table.add_column("description")
    table.add_column("required columns")
    for name, recipe in recipes.items():
        columns = [
            f"{column} (optional)" if what.startswith("optional") else column
            for column, what in recipe.columns.items()
        ]
        table.add_row(name, Text(recipe.description), Text(", ".join(columns)))
    stdout_console().print(table)


def draw_text(recipe: Recipe) -> None:
    """Print the recipe on stdout, in colors on a terminal, otherwise unchanged."""
    console = stdout_console()
    if not console.is_terminal or console.no_color:
        sys.stdout.write(recipe.text)
        return
    from rich.syntax import ANSISyntaxTheme, Syntax

    # Most of a recipe is prose, printed in the terminal's default color.
    theme = ANSISyntaxTheme(
        {("Comment",): Style(dim=True), ("Name", "Tag"): Style(color="cyan", bold=True)}
    )
    syntax = Syntax(recipe.text, "yaml", theme=theme)
    console.print(syntax.highlight(recipe.text), soft_wrap=True, end="")


def next_command(copies: Sequence[Path]) -> str:
    """Return the command that runs a copied recipe on its copied sample."""
    recipe, *samples = copies
    sample = str(samples[0]) if samples else "ROWS.jsonl"
    words = ["pagedrun", "generate", sample, "--recipe", str(recipe), "--model", "MODEL"]
    return shlex.join(words)
