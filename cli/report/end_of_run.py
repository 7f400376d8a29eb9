"""Screen at the end of a run: answers, report and paths of files.

The short view of the report fits on one screen; `--report-view full` prints all of it.
"""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from pagedrun.cli.options.generate_flags import ReportView
from pagedrun.cli.progress.answer_lines import draw_answers
from pagedrun.cli.report.report import (
    draw_advice,
    draw_heading,
    draw_report,
    draw_section,
    note_width,
    summary,
)
from pagedrun.cli.report.report_figures import (
    Figure,
    describe_activations,
    draft_figure,
    failed_rows,
    states_owner,
    text_figures,
)
from pagedrun.cli.terminal.console import note
from pagedrun.cli.terminal.json_lines import json_line
from pagedrun.cli.terminal.units import show_rate, show_seconds, show_size
from pagedrun.paged.metrics.report_sections import JobReport, endings

if TYPE_CHECKING:
    from pagedrun.paged.job.job import JobResult  # which imports much


def end_event(result: "JobResult", output: str) -> str:
    """Return the last event of `--progress json`: the summary with its figures."""
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
    """Print the first answers, the report in this view, and the summary."""
    if result.first_answers:
        draw_heading(console, "First answers")
        draw_answers(result.first_answers, console, console.width)
    draw = draw_report if view is ReportView.FULL else draw_short_report
    draw(result.report, console)
    draw_advice(result.report, console)
    for line in summary(result, output):
        note(console, line, "bold yellow" if result.num_failed else "bold")


MAX_MEMORY_LINES = 8
_MAX_CODES = 3  # of errors


def draw_short_report(report: JobReport, console: Console) -> None:
    """Print the short view of the report, each figure on one line."""
    width = note_width(console)
    for title, figures in _sections(report):
        short = (
            each._replace(note=textwrap.shorten(each.note, width, placeholder="…"))
            for each in figures
        )
        draw_section(console, title, short)


def _sections(report: JobReport) -> Iterator[tuple[str, list[Figure]]]:
    yield "Rows", list(_rows(report))
    if report["kv"]["num_blocks"] and report["tokens"]["prompt"]:
        yield "Memory (all of it: --report-view full)", list(_memory(report))[:MAX_MEMORY_LINES]


def _rows(report: JobReport) -> Iterator[Figure]:
    rows, accuracy, times = report["rows"], report.get("accuracy"), report["time"]
    before = rows["skipped"] - rows.get("skipped_failed", 0)
    note = f", {before:,} of them before" if before else ""
    yield Figure("ok", f"{rows['ok'] + before:,}", f"of {rows['total']:,}{note}")
    yield from failed_rows(report)[: _MAX_CODES + 1]
    ended = endings(report["finish_reasons"])
    if cut := ended.get("length", 0):
        share = f"{cut / sum(ended.values()):.1%} of the answers"
        yield Figure("cut at max_tokens", f"{cut:,}", share, "bold yellow")
    if accuracy:
        share = f"{accuracy['correct'] / accuracy['expected']:.1%}"
        note = f"{accuracy['correct']:,} of {accuracy['expected']:,} as expected"
        yield Figure("accuracy", share, note)
    if replicas := report.get("replicas"):
        died = sum("died" in each for each in replicas)
        note = f"{died:,} of them died" if died else "details: --report-view full"
        yield Figure("replicas", f"{len(replicas):,}", note, "bold red" if died else "bold")
    if pooling := report.get("pooling"):
        yield from text_figures(report, pooling)
    if report["tokens"]["generated"]:
        rows_per_s = show_rate(rows["ok"] / max(times["run_s"], 1e-9))
        speed = f"{times['generated_tokens_per_s']:,.0f} generated tokens/s, {rows_per_s} rows/s"
        yield Figure("time", show_seconds(times["run_s"], precise=True), speed)
    if "speculation" in report and report["speculation"]["accepted"]:
        yield draft_figure(report["speculation"])


def _memory(report: JobReport) -> Iterator[Figure]:
    """Yield the figures in descending importance."""
    memory, kv, prefix = report["memory"], report["kv"], report["prefix"]
    inputs = describe_activations(report["weights"])
    weights = report["weights"]
    if "streaming" in report:
        beside = f"and {show_size(weights['streamed_bytes'])} read in each of {weights['passes']:,}"
        inputs = f"{beside} passes" + (f"; {inputs}" if inputs else "")
    yield Figure("weights", show_size(memory["weights"]), inputs or "")
    used = f"{kv['peak_blocks'] / kv['num_blocks']:.1%} in use at peak"
    yield Figure("KV pool", show_size(memory["kv_pool"]), used)
    if "states" in memory:
        yield Figure("states", show_size(memory["states"]), states_owner(report.get("library")))
    rest = memory["activations_peak"] + memory["other"]
    yield Figure("everything else", show_size(rest), "at peak: activations, Python, torch")
    yield Figure("memory of the machine", show_size(memory["device_total"]))
    achievable = f"of prompt tokens; {prefix['achievable_hit_rate']:.1%} was achievable"
    yield Figure("hit rate", f"{prefix['hit_rate']:.1%}", achievable)
    swap, recompute = report["preemptions"]["swap"], report["preemptions"]["recompute"]
    if swap + recompute:
        how = f"{swap:,} by swap, {recompute:,} by recompute"
        yield Figure("preemptions", f"{swap + recompute:,}", how)
    yield Figure("utilization at peak", f"{kv['utilization_at_peak']:.1%}", "of slots in use")
    contiguous = f"that the pool can hold; {kv['contiguous_max_requests']:,} contiguous"
    yield Figure("requests at once", f"{kv['paged_max_requests']:,}", contiguous)
    read, alone = prefix["attention_bytes_read"], prefix["attention_bytes_without_sharing"]
    if read != alone:
        yield Figure("KV read by attention", show_size(read), f"instead of {show_size(alone)}")
