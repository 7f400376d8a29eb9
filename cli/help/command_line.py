"""CommandLine: Typer's application, with the help of this program."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from pagedrun.cli.help.help_page import HelpPage
from pagedrun.cli.help.panel_command import PanelCommand

F = TypeVar("F", bound=Callable[..., Any])


class PanelGroup(TyperGroup):
    """Typer's group of commands; its help has a line for each of them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print text, options and commands."""
        page = HelpPage(self, ctx)
        page.draw_all()
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        page.draw_commands((name, each.help or "") for name, each in found if each is not None)


class CommandLine(typer.Typer):
    """A `typer.Typer` whose commands are `PanelCommand`s unless they say otherwise."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": PanelGroup, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Register a command, as `typer.Typer.command` does."""
        return super().command(name, **{"cls": PanelCommand, **settings})
