"""Page of a run, written by `generate --html` and `inspect-cache --html`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pagedrun.cli.page.document import Document, Headline
from pagedrun.cli.page.run_data import (
    MAX_PREFIXES,
    CheckedReport,
    LedgerPart,
    kept_moments,
    run_data,
)
from pagedrun.cli.report.replica_table import replica_table
from pagedrun.cli.report.report_figures import group_name
from pagedrun.cli.terminal.units import show_seconds, show_size
from pagedrun.paged.metrics.inspection_sections import InspectedGroup
from pagedrun.paged.metrics.pool_moments import inspected_groups
from pagedrun.paged.metrics.report_sections import (
    CopyCounts,
    GroupFigures,
    PreemptionCounts,
    PrefixFigures,
    RowCounts,
    TimeFigures,
    TokenFigures,
)
from pagedrun.paged.metrics.snapshot import Snapshot

MAX_PREEMPTIONS = 200
SCRIPTS = ("block_map.js", "map_controls.js", "prefix_tree.js", "run.js")
_LEDGER_LABELS: dict[LedgerPart, str] = {
    "weights": "weights",
    "kv_pool": "KV pool",
    "activations_peak": "activations at peak",
    "other": "everything else",
    "free": "free",
}


def write_run_page(
    report: Mapping[str, object] | None, snapshot: Snapshot | None, path: Path, name: str = ""
) -> None:
    """Write the page of a run to `path`.

    report: the object in `OUT.report.json`; None after an interrupted run, whose page shows the
    snapshot only. Without a snapshot the page has no blocks. name: title of the run, its output
    file. Raises `OutputError` if the page cannot be written.
    """
    run_document(report, snapshot, name).write(path)


def run_document(
    report: Mapping[str, object] | None, snapshot: Snapshot | None, name: str
) -> Document:
    """Return the page of a run."""
    figures = CheckedReport(report or {})
    return Document(
        template="run.html",
        scripts=SCRIPTS,
        values={
            "name": name,
            "headlines": [] if report is None else headlines(figures),
            "advice": figures.advice(),
            "has_run": snapshot is not None or figures.kv["num_blocks"] > 0,
            "has_report": report is not None,
            "ledger": _ledger(figures),
            "groups": _groups(figures, snapshot),
            "replicas": replica_table(report or {}),
            "endings": _endings(figures),
            "tables": _tables(figures),
            "map_notes": _map_notes(snapshot),
            "snapshot": snapshot,
            "has_map": snapshot is not None and len(snapshot.samples) > 0,
            "preemptions": _preemptions(snapshot),
            "num_preemptions": 0 if snapshot is None else len(snapshot.preemptions),
            "max_prefixes": MAX_PREFIXES,
        },
        data=run_data(figures, snapshot),
    )


def headlines(figures: CheckedReport) -> list[Headline]:
    """Return the large figures at the top of the page."""
    rows, kv = figures.section("rows", RowCounts), figures.kv
    failed = f"{rows['failed']:,.0f} failed" if rows["failed"] else "all ok"
    of_rows = Headline("rows", f"{rows['total']:,.0f}", failed)
    if not kv["num_blocks"]:
        return [of_rows]
    prefix, times = figures.section("prefix", PrefixFigures), figures.section("time", TimeFigures)
    preemptions = figures.section("preemptions", PreemptionCounts)
    num_generated = figures.section("tokens", TokenFigures)["generated"]
    num_copies = figures.section("copy_on_write", CopyCounts)["block_copies"]
    paged, contiguous = kv["paged_max_requests"], kv["contiguous_max_requests"]
    gain = f"; {paged / contiguous:.1f} times as many" if contiguous else ""
    seconds = prefix["seconds_saved"]
    run_time = show_seconds(times["run_s"], precise=True)
    preempted = preemptions["swap"] + preemptions["recompute"]
    return [
        of_rows,
        Headline(
            "prompt tokens from the cache",
            f"{prefix['hit_rate']:.1%}",
            f"{prefix['achievable_hit_rate']:.1%} was achievable",
        ),
        Headline(
            "of the pool in use at peak",
            f"{kv['peak_blocks'] / kv['num_blocks']:.1%}",
            f"{kv['peak_blocks']:,.0f} of {kv['num_blocks']:,.0f} blocks",
        ),
        Headline(
            "of held slots store a token",
            f"{kv['utilization_at_peak']:.1%}",
            f"{kv['contiguous_utilization']:.1%} if contiguous",
        ),
        Headline(
            "requests the pool holds at once",
            f"{paged:,.0f}",
            f"{contiguous:,.0f} if contiguous{gain}",
        ),
        Headline(
            "of KV not computed again",
            show_size(prefix["bytes_saved"]),
            f"about {show_seconds(seconds, precise=True)} of computation" if seconds else "",
        ),
        Headline(
            "generated tokens a second",
            f"{times['generated_tokens_per_s']:,.0f}",
            f"{num_generated:,.0f} in {run_time}",
        ),
        Headline(
            "preemptions",
            f"{preempted:,.0f}",
            f"{num_copies:,.0f} blocks copied on write",
        ),
    ]


def _ledger(figures: CheckedReport) -> list[tuple[str, str, float]]:
    """Return label, size and share of each part of the memory."""
    ledger = figures.ledger
    total = sum(ledger.values())
    if not total:
        return []
    lines = [(_LEDGER_LABELS[name], show_size(size), size / total) for name, size in ledger.items()]
    return [*lines, ("memory of the device", show_size(total), 1.0)]


def _groups(
    figures: CheckedReport, snapshot: Snapshot | None
) -> list[tuple[str, str, str, str, str]]:
    """Return name, blocks, bytes, peak blocks and peak bytes of each KV group; empty for one
    group."""
    if snapshot is None:
        pools: Sequence[GroupFigures | InspectedGroup] = figures.groups()
    else:
        pools = inspected_groups(snapshot, None)
    return [
        (
            group_name(each["num_layers"], each["window"]),
            f"{each['num_blocks']:,.0f}",
            show_size(each["pool_bytes"]),
            f"{each['peak_blocks']:,.0f}",
            show_size(each["peak_bytes"]),
        )
        for each in pools
    ]


def _endings(figures: CheckedReport) -> list[tuple[str, str]]:
    """Return the counts of finish reasons and error codes."""
    reasons, errors = figures.numbers("finish_reasons"), figures.numbers("errors")
    lines = [(f"finished: {reason}", f"{count:,.0f}") for reason, count in reasons.items()]
    return [*lines, *((f"failed: {code}", f"{count:,.0f}") for code, count in errors.items())]


def _tables(figures: CheckedReport) -> dict[str, dict[str, str]]:
    """Return the report's other figures, by title."""
    tables = {
        "Tokens": {name: f"{count:,.0f}" for name, count in figures.numbers("tokens").items()},
        "Time": {name: f"{value:,.2f}" for name, value in figures.numbers("time").items()},
        "Weights read in each pass": figures.texts("streaming"),
        "Settings": figures.texts("config"),
        "Machine": figures.texts("hardware"),
    }
    return {title: lines for title, lines in tables.items() if lines}


def _map_notes(snapshot: Snapshot | None) -> list[str]:
    """Return the notes about omissions of the block map."""
    if snapshot is None or not len(snapshot.samples):
        return []
    notes = []
    if snapshot.first_group is not None:
        notes.append("It describes the first group of layers, which keeps whole sequences.")
    kept = len(kept_moments(len(snapshot.samples), snapshot.num_blocks))
    if kept < snapshot.num_steps:
        notes.append(f"{kept:,} of {snapshot.num_steps:,} steps are kept.")
    return notes


def _preemptions(snapshot: Snapshot | None) -> list[dict[str, int]]:
    """Return the first preemptions."""
    if snapshot is None:
        return []
    first = np.arange(min(len(snapshot.preemptions), MAX_PREEMPTIONS))
    return snapshot.preemptions.where(first).records()
