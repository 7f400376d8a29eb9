"""The memory report as tables: what was computed, where the bytes went, what sharing saved."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedrun.cli.progress import show_seconds
from pagedrun.cli.safe_text import safe
from pagedrun.cli.sizes import show_size
from pagedrun.paged.job.job import JobResult

Lines = list[tuple[str, str]]
_MEMORY_LABELS = {
    "weights": "weights",
    "kv_pool": "KV pool",
    "activations_peak": "activations, at peak",
    "other": "other",
    "peak_resident": "process, at peak",
    "device_total": "device, in all",
}


def draw_report(report: Mapping[str, Any], console: Console) -> None:
    """Print the report (the object in `OUT.report.json`) on `console`."""
    for title, lines in (
        ("Tokens and speed", _tokens(report)),
        ("Where the bytes went", _memory(report["memory"])),
        ("KV pool", _kv(report["kv"])),
        ("Shared prefixes", _prefix(report["prefix"])),
        ("Copies and preemptions", _events(report)),
        ("How answers ended", _endings(report)),
    ):
        if lines:
            console.print(_section(title, lines))


def summary(result: JobResult, output: str) -> str:
    """Return the last line: what became of the rows, and where to look."""
    rows = result.report["rows"]
    where = "standard output" if output == "-" else output
    beside = f"; report in {result.report_path}" if result.report_path else ""
    failed = f", {rows['failed']} failed (see their error)" if rows["failed"] else ""
    return f"{rows['total']} rows: {rows['ok']} ok{failed} → {where}{beside}"


def _section(title: str, lines: Lines) -> Table:
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        show_header=False,
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    table.add_column(width=30)
    table.add_column(overflow="fold")
    for label, value in lines:
        table.add_row(Text(f"  {safe(label)}"), Text(safe(value)))
    return table


def _tokens(report: Mapping[str, Any]) -> Lines:
    tokens, times = report["tokens"], report["time"]
    lines = [
        ("prompt tokens", _count(tokens["prompt"])),
        ("taken from the cache", _count(tokens["cached"])),
        ("computed", _count(tokens["computed"])),
        ("generated tokens", _count(tokens["generated"])),
        (
            "prompt speed",
            f"{times['prompt_tokens_per_s']:,.1f} tokens/s, cached ones included",
        ),
        ("generation speed", f"{times['generated_tokens_per_s']:,.1f} tokens/s"),
        (
            "time",
            f"load {_seconds(times['load_s'])}, compile {_seconds(times['compile_s'])}, "
            f"plan {_seconds(times['plan_s'])}, run {_seconds(times['run_s'])}",
        ),
    ]
    accuracy = report.get("accuracy")
    if accuracy:
        share = accuracy["correct"] / accuracy["expected"]
        lines.append(
            (
                "accuracy",
                f"{_count(accuracy['correct'])} of {_count(accuracy['expected'])} answers as "
                f"expected ({share:.1%})",
            )
        )
    return lines


def _memory(memory: Mapping[str, Any]) -> Lines:
    return [
        (label, show_size(memory[key])) for key, label in _MEMORY_LABELS.items() if key in memory
    ]


def _kv(kv: Mapping[str, Any]) -> Lines:
    block_bytes = kv["block_size"] * kv["bytes_per_token"]
    peak_share = kv["peak_blocks"] / kv["num_blocks"] if kv["num_blocks"] else 0.0
    return [
        (
            "blocks",
            f"{_count(kv['num_blocks'])} of {kv['block_size']} tokens, {show_size(block_bytes)} "
            f"each, {show_size(kv['pool_bytes'])} in all",
        ),
        ("in use at peak", f"{_count(kv['peak_blocks'])} blocks ({peak_share:.1%} of the pool)"),
        (
            "utilisation at peak",
            f"{kv['utilization_at_peak']:.1%} of the slots held a token, "
            f"tail waste {kv['tail_waste']:.1%}",
        ),
        (
            "the same bytes, contiguous",
            f"{kv['contiguous_utilization']:.1%} utilisation, "
            f"{_count(kv['contiguous_max_requests'])} requests at once",
        ),
        ("the same bytes, paged", f"{_count(kv['paged_max_requests'])} requests at once"),
    ]


def _prefix(prefix: Mapping[str, Any]) -> Lines:
    return [
        ("tokens found in the cache", _count(prefix["hit_tokens"])),
        (
            "hit rate",
            f"{prefix['hit_rate']:.1%} of prompt tokens; "
            f"{prefix['achievable_hit_rate']:.1%} was achievable",
        ),
        ("shared blocks at peak", _count(prefix["shared_blocks_peak"])),
        ("KV bytes not computed again", show_size(prefix["bytes_saved"])),
    ]


def _events(report: Mapping[str, Any]) -> Lines:
    copies, preemptions = report["copy_on_write"], report["preemptions"]
    return [
        (
            "copy on write",
            f"{_count(copies['forks'])} forks, {_count(copies['block_copies'])} blocks copied",
        ),
        (
            "preemptions",
            f"{_count(preemptions['swap'])} by swap, {_count(preemptions['recompute'])} by "
            f"recompute ({_count(report['tokens']['preempted_recomputed'])} tokens again)",
        ),
    ]


def _endings(report: Mapping[str, Any]) -> Lines:
    reasons = report.get("finish_reasons") or {}
    total = sum(reasons.values())
    return [
        (reason, f"{_count(number)} ({number / total:.1%})")
        for reason, number in sorted(reasons.items(), key=lambda item: -item[1])
    ]


def _count(number: int) -> str:
    return f"{number:,}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 60 else show_seconds(seconds)
