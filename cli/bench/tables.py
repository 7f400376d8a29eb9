"""Tables of results on a terminal or as Markdown, and the format of their cells."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedrun.cli.terminal.console import safe

if TYPE_CHECKING:
    from pagedrun.paged.bench.prefix import PrefixBenchFigures
    from pagedrun.paged.bench.result import Spread
    from pagedrun.paged.bench.throughput import ThroughputBenchFigures
    from pagedrun.paged.bench.workload import Lengths


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


NOTHING = "–"


def show_spread(spread: "Spread | None", show: Callable[[float], str]) -> str:
    """Return `12.3 (11.9…12.8)`, the median alone of one measurement, – for None."""
    if spread is None:
        return NOTHING
    if spread.count == 1:
        return show(spread.median)
    return f"{show(spread.median)} ({show(spread.low)}…{show(spread.high)})"


def show_ratio(ratio: float) -> str:
    """Return a ratio with three digits."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x" if ratio < 100 else f"{ratio:.0f}x"


def show_number(number: float) -> str:
    """Return a number with at least three significant digits."""
    for least, form in ((100, "{:,.0f}"), (10, "{:.1f}"), (1, "{:.2f}"), (0.1, "{:.3f}")):
        if number >= least:
            return form.format(number)
    return f"{number:.4f}"


def show_ms(seconds: float) -> str:
    """Return seconds as milliseconds, without the unit."""
    return show_number(seconds * 1e3)


def show_percent(part: float) -> str:
    """Return a share in percent, below 10% with a decimal."""
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


def show_tokens(length: "int | Lengths") -> str:
    """Return a number of tokens, or a range of them."""
    if isinstance(length, int):
        return f"{length:,}"
    return f"{length.low:,} to {length.high:,}"


def describe_model(result: "ThroughputBenchFigures | PrefixBenchFigures") -> str:
    """Return the model in a line."""
    model = result["model"]
    return (
        f"{model['name']}, {model['num_layers']} layers, {model['vocab_size']:,} tokens in the "
        f"vocabulary, {model['dtype']}; weights {model['weights']}"
    )
