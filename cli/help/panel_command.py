"""PanelCommand: a command whose help shows its daily flags, all of them, or one panel."""

from typing import Any

from typer.core import TyperCommand

from pagedrun.cli.help.help_page import HelpPage

_ASKED = "pagedrun.help"


class PanelCommand(TyperCommand):
    """A command of Typer's: `--help` shows all flags, `--help PANEL` those of one panel.

    `daily` names the flags that `-h` shows; without any it is `--help`.
    """

    daily: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual; how help was asked for, if it was, is kept for `format_help`."""
        ctx.meta[_ASKED] = list(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help that was asked for. Raises Click's error for a panel that is not there."""
        page, asked = HelpPage(self, ctx), ctx.meta.get(_ASKED, [])
        word = _word_behind("--help", asked)
        if word is not None:
            if (panel := page.find(word)) is not None:
                page.draw_panel(panel)
            else:
                ctx.fail(f"--help {word}: there is no such panel; the panels are {_listed(page)}")
        elif self.daily and "-h" in asked and "--help" not in asked:
            page.draw_daily(self.daily)
            page.draw_line(f"--help shows all flags, --help PANEL one panel: {_listed(page)}.")
        else:
            page.draw_all()
            daily = "-h shows the daily flags, " if self.daily else ""
            if len(page.panels) > 1:
                page.draw_line(f"{daily}--help PANEL one panel: {_listed(page)}.")


def _listed(page: HelpPage) -> str:
    return ", ".join(page.panels)


def _word_behind(flag: str, args: list[str]) -> str | None:
    """Return the word that follows a flag, None where another flag or nothing does."""
    place = args.index(flag) + 1 if flag in args else len(args)
    word = args[place] if place < len(args) else "-"
    return None if word.startswith("-") else word
