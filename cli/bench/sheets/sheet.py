"""Sheet: one table of a result, as text; drawn on a terminal or written as Markdown."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedrun.cli.terminal.console import safe


@dataclass(frozen=True, slots=True)
class Sheet:
    """A title, a header and rows of the same width. All columns but the first hold figures."""

    title: str
    header: Seq[str]
    rows: Seq[Seq[str]]
    caption: str = ""

    def draw(self, console: Console) -> None:
        """Print the table on `console`."""
        table = Table(
            title=Text(safe(self.title), style="bold"),
            title_justify="left",
            box=None,
            padding=(0, 2, 0, 0),
            pad_edge=False,
        )
        for index, name in enumerate(self.header):
            table.add_column(
                Text(safe(name)), justify="left" if index == 0 else "right", no_wrap=index == 0
            )
        for row in self.rows:
            table.add_row(*(Text(safe(cell)) for cell in row))
        console.print(table)
        if self.caption:
            console.print(Text(safe(self.caption), style="dim"))

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown."""
        marks = [":--", *["--:"] * (len(self.header) - 1)]
        lines = [_line(self.header), _line(marks), *map(_line, self.rows)]
        caption = ["", _escaped(self.caption)] if self.caption else []
        return "\n".join([f"### {_escaped(self.title)}", "", *lines, *caption, ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return safe(text).replace("|", "\\|").replace("<", "&lt;")
