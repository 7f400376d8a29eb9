"""CommandGroup: the subcommands, and an answer to those of other programs."""

from typing import Any

from pagedrun.cli.foreign.commands import explain
from pagedrun.cli.help.command_line import PanelGroup


class CommandGroup(PanelGroup):
    """A group of commands, which fails with a sentence for a command that others have."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that `args` begin with. Raises Typer's error where there is none."""
        told = None if args[0] in self.commands else explain(args[0])
        if told is not None:
            ctx.fail(told)
        return super().resolve_command(ctx, args)
