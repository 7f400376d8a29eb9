"""What is on the screen when a run has ended: first the answers, last where to look."""

from typing import TYPE_CHECKING

from rich.console import Console

from pagedrun.cli.options.choices import ReportView
from pagedrun.cli.progress.answer_lines import draw_answers
from pagedrun.cli.report.report import WIDTH, draw_advice, draw_report, heading, summary
from pagedrun.cli.report.short_report import draw_short_report
from pagedrun.cli.terminal.console import note
from pagedrun.cli.terminal.json_lines import json_line

if TYPE_CHECKING:
    from pagedrun.paged.job.job import JobResult  # which imports much


def end_event(result: "JobResult", output: str) -> str:
    """Return the last line of `--progress json`: the summary, and the figures behind it."""
    report = result.report
    paths = {"report": result.report_path, "journal": result.journal_path}
    return json_line(
        "end",
        message=summary(result, output)[0],
        rows=report["rows"],
        tokens=report["tokens"],
        time=report["time"],
        advice=report["advice"],
        output=None if output == "-" else output,
        **{name: None if path is None else str(path) for name, path in paths.items()},
    )


def draw_end(result: "JobResult", output: str, view: ReportView, console: Console) -> None:
    """Print the first answers, the report in the view that was asked for, and its summary."""
    if result.first_answers:
        console.print(heading("First answers", console, min(console.width, WIDTH)))
        draw_answers(result.first_answers, console, console.width)
    draw = draw_report if view is ReportView.FULL else draw_short_report
    draw(result.report, console)
    draw_advice(result.report, console)
    for line in summary(result, output):
        note(console, line, "bold yellow" if result.num_failed else "bold")
