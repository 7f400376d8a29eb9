"""`pagedrun doctor`: facts about this machine, and fixes of its problems."""

import textwrap
from typing import TYPE_CHECKING

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import TypedValues
from pagedrun.cli.options.generate_flags import GENERATE

if TYPE_CHECKING:
    from rich.console import Console

    from pagedrun.cli.options.settings import DefaultFacts
    from pagedrun.paged.machine.examination import Examination

HELP = """Check this machine: versions, processor, memory, caches, GPU, hub and defaults.

Shows the effect of the processor's features on speed and bytes, the kernels that a run uses, \
the folders of compiled kernels and models, and why no GPU is used if there is none. Nothing is \
compiled, downloaded or written; the hub is queried for 3 seconds at most.

Examples:

  pagedrun doctor
  pagedrun doctor --json | jq .problems

Exit status: 0 no problems, 1 problems, each shown with its fix.
"""


def _doctor(context: typer.Context, given: TypedValues) -> None:
    """Check this machine."""
    with exits.boundary():
        # Lazy: `--help` must start fast.
        from pagedrun.cli.options.generate_flags import Display
        from pagedrun.cli.options.reading import read
        from pagedrun.cli.options.settings import config_settings, default_facts
        from pagedrun.cli.terminal.console import note, print_json, stderr_console
        from pagedrun.paged.machine.examination import examine

        display, console = read(Display, given), stderr_console()
        found = examine()
        defaults, broken = default_facts(config_settings())
        if broken is not None:
            found["problems"].append(broken)
        if not display.quiet:
            _draw(found, defaults, console)
        for sentence in found["problems"]:
            note(console, f"Broken: {sentence}", "bold red")
        if display.json_report:
            print_json({**found, "defaults": defaults})
        raise typer.Exit(exits.ENGINE_FAILED if found["problems"] else exits.OK)


doctor = GENERATE.only("json_report", "quiet").command(_doctor)


def _draw(found: "Examination", defaults: "DefaultFacts", console: "Console") -> None:
    from rich.text import Text

    from pagedrun.cli.report.doctor_report import examination_lines
    from pagedrun.cli.report.report import WIDTH, draw_heading
    from pagedrun.cli.terminal.console import safe

    width, indent = min(console.width, WIDTH), 22
    for title, lines in examination_lines(found, defaults):
        draw_heading(console, title)
        for label, told in lines:
            wrapped = textwrap.wrap(safe(told), max(width - indent, 20), break_on_hyphens=False)
            first, *rest = wrapped or [""]
            name = f"  {label:<{indent - 2}}"
            console.print(Text.assemble(name, (first, "bold")), soft_wrap=True)
            for more in rest:
                console.print(Text(" " * indent + more), soft_wrap=True)
