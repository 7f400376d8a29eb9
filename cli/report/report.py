"""Full view, advice and summary of the memory report; layout of sections for all screens.

Without a terminal the text has no rules and no blanks at line ends.
"""

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pagedrun.cli.report.replica_table import draw_replicas
from pagedrun.cli.report.report_figures import Figure, sections
from pagedrun.cli.terminal.console import safe
from pagedrun.cli.terminal.units import counted, show_seconds

if TYPE_CHECKING:
    from pagedrun.paged.job.job import JobResult  # which imports much
    from pagedrun.paged.metrics.report_sections import JobReport, RowCounts

WIDTH = 80
LABEL_WIDTH = 25
VALUE_WIDTH = 12
NOTE_BEGINS = 2 + LABEL_WIDTH + VALUE_WIDTH + 2
MIN_NOTE_WIDTH = 16


def draw_report(report: "JobReport", console: Console) -> None:
    """Print all sections of the report (the object in `OUT.report.json`)."""
    for title, figures in sections(report, note_width(console)):
        draw_section(console, title, figures)
    if report.get("replicas"):
        draw_heading(console, "Replicas")
        draw_replicas(report, console, min(console.width, WIDTH))


def draw_advice(report: "JobReport", console: Console) -> None:
    """Print the advice of the report, if any."""
    width = min(console.width, WIDTH)
    if report["advice"]:
        draw_heading(console, "Advice")
    for each in report["advice"]:
        for words in textwrap.wrap(safe(each["sentence"]), width - 4):
            console.print(Text(f"  {words}"), soft_wrap=True)


def summary(result: "JobResult", output: str) -> list[str]:
    """Return the last lines: counts of rows, time and tokens, and paths of files."""
    rows = result.report["rows"]
    where = "standard output" if output == "-" else output
    told = f"{counted(rows['total'], 'row')}: {show_endings(rows)} → {where}"
    if "copied" in rows:
        told = f"{told} ({_taken(rows)})"
    report = [f"memory report → {result.report_path}"] if result.report_path else []
    journal = result.journal_path
    kept = [f"rows so far, for --resume --retry-errors → {journal}"] if journal else []
    return [told, show_totals(result.report), *kept, *report]


def show_endings(rows: "RowCounts") -> str:
    """Return the counts of ok and failed rows, and of those done by an earlier run, such as 97 ok,
    3 failed, or 98 ok, 88 of them before; 2 failed, 2 of them before."""
    failed_before = rows.get("skipped_failed", 0)
    ok_before = rows["skipped"] - failed_before
    told = [f"{rows['ok'] + ok_before:,} ok{_before(ok_before)}"]
    if failed := rows["failed"] + failed_before:
        told.append(f"{failed:,} failed{_before(failed_before)}")
    return ("; " if rows["skipped"] else ", ").join(told)


def _before(count: int) -> str:
    return f", {count:,} of them before" if count else ""


def show_totals(report: "JobReport") -> str:
    """Return the time of the command and the tokens of this run."""
    tokens, wall_s = report["tokens"], report["time"].get("wall_s", report["time"]["run_s"])
    told = f"{show_seconds(wall_s, precise=True)} in all"
    if not tokens["prompt"]:
        return told
    cached = f" ({tokens['cached']:,} cached)" if tokens["cached"] else ""
    told = f"{told}; {tokens['prompt']:,} prompt tokens{cached}"
    return told if "pooling" in report else f"{told}, {tokens['generated']:,} generated"


def failures(result: "JobResult", output: str) -> str:
    """Return the line about failed rows for `--quiet`."""
    total, codes = result.report["rows"]["total"], result.report["errors"]
    why = ", ".join(f"{code} {number:,}" for code, number in codes.items())
    where = "the output" if output == "-" else output
    told = f"{counted(total, 'row')} failed" + (f" ({why})" if why else "")
    return f"Error: {result.num_failed:,} of {told}; see `error` in {where}"


def _taken(rows: "RowCounts") -> str:
    """Return the counts of rows copied, continued and computed under `--from`."""
    return (
        f"{rows.get('copied', 0):,} copied, {rows.get('continued', 0):,} continued, "
        f"{rows.get('computed', 0):,} computed"
    )


def draw_section(
    console: Console, title: str, figures: Iterable[Figure], max_width: int = WIDTH
) -> None:
    """Print a heading and the lines of figures; nothing without figures."""
    lines = [
        line for each in figures for line in figure_lines(each, note_width(console, max_width))
    ]
    if lines:
        draw_heading(console, title, max_width)
    for line in lines:
        console.print(line, soft_wrap=True)


def draw_heading(console: Console, title: str, max_width: int = WIDTH) -> None:
    """Print the title of a section, on a terminal with a rule up to `max_width` characters."""
    if not console.is_terminal:
        console.print(Text(title))
        return
    dash = "-" if console.options.ascii_only else "─"
    rule = dash * max(min(console.width, max_width) - len(title) - 4, 0)
    console.print(
        Text.assemble((f"{dash}{dash} ", "dim"), (title, "bold cyan"), (f" {rule}", "dim"))
    )


def note_width(console: Console, max_width: int = WIDTH) -> int:
    """Return the width of the notes' column in a section of up to `max_width` characters."""
    return max(min(console.width, max_width) - NOTE_BEGINS, MIN_NOTE_WIDTH)


def figure_lines(figure: Figure, width: int) -> Iterator[Text]:
    """Yield the lines of a figure, whose note is wrapped to `width` characters."""
    first, *rest = textwrap.wrap(safe(figure.note), width) or [""]
    value = figure.value.rjust(VALUE_WIDTH)
    line = Text.assemble(
        f"  {safe(figure.label):<{LABEL_WIDTH}}",
        (value, figure.style),
        (f"  {first}" if first else "", "dim"),
    )
    line.rstrip()
    yield line
    for more in rest:
        yield Text(" " * NOTE_BEGINS + more, style="dim")
