"""Help pages of `-h` and `--help`, and the groups of commands that print them.

A help page consists of panels of flags; `-h` shows the daily flags, `--help` all flags, and
`--help PANEL` one panel. `CommandGroup` answers names of other programs' commands with the
equivalent command. Loaded at start-up: this module imports Typer and Rich, and nothing heavy.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

F = TypeVar("F", bound=Callable[..., Any])


class PanelGroup(TyperGroup):
    """Group of commands, with a line for each command in its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print text, options and commands."""
        page = HelpPage(self, ctx)
        page.draw_all()
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        page.draw_commands((name, each.help or "") for name, each in found if each is not None)


class CommandLine(typer.Typer):
    """`typer.Typer` with `PanelCommand` as the default class of commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": PanelGroup, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Register a command; see `typer.Typer.command`."""
        return super().command(name, **{"cls": PanelCommand, **settings})


class CommandGroup(PanelGroup):
    """Group of commands that answers names of other programs' commands with a hint."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command at the beginning of `args`; raises Typer's error for an unknown one."""
        told = None if args[0] in self.commands else explain(args[0])
        if told is not None:
            ctx.fail(told)
        return super().resolve_command(ctx, args)


MAX_WIDTH = 100
MAX_NAME_WIDTH = 32
ARGUMENTS, OPTIONS = "Arguments", "Options"


class HelpPage:
    """Help of a command in its context, without its help flags.

    Command and context are Click's, or Typer's copies.
    """

    def __init__(self, command: Any, context: Any) -> None:
        self._command = command
        self._context = context
        self._panels: dict[str, list[Any]] = {}
        for each in command.get_params(context):
            if not getattr(each, "hidden", False) and not {"--help", "-h"} & set(each.opts):
                self._panels.setdefault(_panel_of(each), []).append(each)
        self._console = Console(markup=False, emoji=False, highlight=False)
        self._width = min(self._console.width, MAX_WIDTH)

    @property
    def panels(self) -> tuple[str, ...]:
        """Names of the panels of flags: the first word of each title, in lower case."""
        titles = (title for title in self._panels if title != ARGUMENTS)
        return tuple(title.split()[0].lower() for title in titles)

    def find(self, word: str) -> str | None:
        """Return the first title with a word that begins with `word`."""
        wanted = word.lower()
        titles = (title for title in self._panels if title != ARGUMENTS)
        return next((t for t in titles if _begins_word(wanted, t)), None)

    def draw_all(self) -> None:
        """Print usage, text and every panel."""
        self._draw_usage()
        self._draw_text(self._command.help or "")
        for title, params in self._panels.items():
            self._draw_panel(title, params)

    def draw_panel(self, title: str) -> None:
        """Print usage and one panel."""
        self._draw_usage()
        self._draw_panel(title, self._panels[title])

    def draw_daily(self, names: Iterable[str]) -> None:
        """Print usage and the named flags, with the first sentence of each help."""
        self._draw_usage()
        self._draw_text((self._command.help or "").partition("\n\n")[0])
        by_name = {each.name: each for params in self._panels.values() for each in params}
        self._draw_panel("Daily flags", [by_name[name] for name in names], is_brief=True)

    def draw_commands(self, commands: Iterable[tuple[str, str]]) -> None:
        """Print commands with the first sentence of their help."""
        rows = [(name, _first_sentence(help_text)) for name, help_text in commands]
        self._draw_rows("Commands", rows)

    def draw_line(self, line: str) -> None:
        """Print a line of prose."""
        for each in textwrap.wrap(line, self._width):
            self._console.print(Text(each), soft_wrap=True)

    def _draw_usage(self) -> None:
        words = [self._context.command_path, "[OPTIONS]"]
        words += [_argument(each) for each in self._panels.get(ARGUMENTS, [])]
        if hasattr(self._command, "commands"):
            words += ["COMMAND", "[ARGS]..."]
        usage = Text.assemble(("Usage: ", "bold cyan"), " ".join(words))
        self._console.print(usage, soft_wrap=True)
        self._console.print()

    def _draw_text(self, text: str) -> None:
        for paragraph in text.split("\n\n"):
            for line in self._lines(paragraph):
                self._console.print(Text(line), soft_wrap=True)
            self._console.print()

    def _lines(self, paragraph: str) -> Iterator[str]:
        """Yield the lines of a paragraph, wrapped unless it is an indented example."""
        if paragraph.startswith("  "):
            yield from paragraph.split("\n")
        else:
            yield from textwrap.wrap(" ".join(paragraph.split()), self._width)

    def _draw_panel(self, title: str, params: Iterable[Any], *, is_brief: bool = False) -> None:
        rows = []
        for each in params:
            told = getattr(each, "help", None) or ""
            name = _argument(each) if _panel_of(each) == ARGUMENTS else _flag(each, is_brief)
            rows.append((name, _first_sentence(told) if is_brief else told))
        self._draw_rows(title, rows)

    def _draw_rows(self, title: str, rows: list[tuple[str, str]]) -> None:
        if not rows:
            return
        longest = max(len(line) for name, _ in rows for line in name.split("\n"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=0)
        table.add_column(width=min(longest, MAX_NAME_WIDTH, self._width // 2))
        table.add_column()
        for name, told in rows:
            table.add_row("", Text(name, "bold"), Text(told))
        heading = Text(title, style="bold cyan")
        self._console.print(Group(heading, table), width=self._width)
        self._console.print()


def _panel_of(param: Any) -> str:
    if param.param_type_name == "argument":
        return ARGUMENTS
    return str(getattr(param, "rich_help_panel", None) or OPTIONS)


def _begins_word(begin: str, title: str) -> bool:
    return any(word.lower().startswith(begin) for word in title.split() if word != "and")


def _argument(param: Any) -> str:
    """Return an argument as shown in the usage, an optional one in brackets."""
    name = param.metavar or param.name.upper()
    if name.startswith("["):
        return str(name)
    name = f"{name}..." if param.nargs == -1 and not name.endswith("...") else name
    return name if param.required else f"[{name}]"


def _flag(param: Any, is_brief: bool) -> str:
    """Return the spelling of a flag; `is_brief` omits the negative form of a switch."""
    shown = ", ".join(sorted(param.opts, key=len))
    if param.is_flag:
        off = ", ".join(param.secondary_opts)
        if is_brief or not off:
            return shown
        between = " / " if len(shown) + len(off) + 3 <= MAX_NAME_WIDTH else "\n"
        return f"{shown}{between}{off}"
    return f"{shown} {param.metavar or param.name.upper()}"


def _first_sentence(text: str) -> str:
    """Return a text up to the first full stop before a blank or the end."""
    first = " ".join(text.split("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".") + "." if first else ""


_ASKED = "pagedrun.help"


class PanelCommand(TyperCommand):
    """Command with `--help` for all flags and `--help PANEL` for one panel.

    `daily` names the flags of `-h`; without them `-h` is `--help`.
    """

    daily: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them for `format_help`."""
        ctx.meta[_ASKED] = list(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the requested help; raises Click's error for an unknown panel."""
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
    """Return the word after a flag, None if it is a flag or missing."""
    index = args.index(flag) + 1 if flag in args else len(args)
    word = args[index] if index < len(args) else "-"
    return None if word.startswith("-") else word


_GENERATE = "pagedrun generate INPUT answers the rows of a file"
_ASK = 'pagedrun ask "TEXT" answers one question'
_SHOW = "pagedrun show INPUT prints a prompt as the model will read it"
_NO_SERVER = "pagedrun has no server: pagedrun generate INPUT answers the rows of a file"
_DOCTOR = "pagedrun doctor checks this machine"
_HUB = "pagedrun takes models by their name on the hub and downloads them when needed: "

COMMANDS = {
    "run": _GENERATE,
    "batch": _GENERATE,
    "run-batch": _GENERATE,
    "infer": _GENERATE,
    "inference": _GENERATE,
    "predict": _GENERATE,
    "complete": _ASK,
    "completion": _ASK,
    "chat": _ASK + ", pagedrun generate a file of chats",
    "prompt": _ASK,
    "query": _ASK,
    "preview": _SHOW,
    "render": _SHOW,
    "tokenize": _SHOW,
    "serve": _NO_SERVER,
    "server": _NO_SERVER,
    "api": _NO_SERVER,
    "benchmark": "pagedrun bench measures this machine",
    "eval": "pagedrun lm-eval runs lm-evaluation-harness",
    "evaluate": "pagedrun lm-eval runs lm-evaluation-harness",
    "pull": _HUB + "see --model",
    "download": _HUB + "see --model",
    "inspect": "pagedrun inspect-cache TARGET shows the memory of a run",
    "cache": "pagedrun inspect-cache TARGET shows the memory of a run",
    "dry-run": "pagedrun plan INPUT shows what a run would do, without weights",
    "env": _DOCTOR,
    "collect-env": _DOCTOR,
    "info": _DOCTOR,
    "compile": "pagedrun warmup compiles the kernels ahead of a run",
    "version": "pagedrun --version",
}


def explain(name: str) -> str | None:
    """Return the hint for an unknown command, None without one."""
    told = COMMANDS.get(name)
    return None if told is None else f"there is no command {name}: {told}"
