"""Inspection of a finished run: its pool as one JSON object.

Combines a snapshot and a saved report; sections that need a missing one are null.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from pagedrun.paged.metrics.block_tables import (
    BlockLives,
    block_tables,
    lifetimes,
    residencies,
    shared_blocks,
)
from pagedrun.paged.metrics.inspection_sections import (
    BeamCounts,
    BeamEvent,
    BlockLife,
    HeldPrefix,
    HeldPrefixes,
    InspectedBeams,
    InspectedPool,
    InspectedReads,
    InspectedRow,
    Inspection,
    Number,
    PreemptionEvent,
    PreemptionRecord,
    RowBeams,
    RunCounts,
)
from pagedrun.paged.metrics.pool_moments import (
    LETTERS,
    PEAK,
    Moment,
    block_letters,
    group_tables,
    inspected_groups,
    peak_moment,
    reported_groups,
    snapshot_moment,
    timeline_moment,
    use_over_time,
)
from pagedrun.paged.metrics.report_sections import StateFigures, section_of
from pagedrun.paged.metrics.saved_report import SavedReport
from pagedrun.paged.metrics.snapshot import Branchings, Preemptions, PrefixNodes, Snapshot

DEFAULT_TOP = 10


@dataclass(frozen=True, slots=True)
class InspectionQuery:
    """Query of an inspection: `at` as for `Moment.find`, `rows` by index.

    `top` limits the length of lists that grow with the run.
    """

    at: str = PEAK
    rows: Sequence[int] = ()
    top: int = DEFAULT_TOP


def inspect_run(
    snapshot: Snapshot | None, report: SavedReport | None, query: InspectionQuery
) -> Inspection:
    """Return the inspection of a snapshot, a report or both; unknown sections are null.

    Raises `UsageError` if `query.at` names no moment.
    """
    found: Inspection = {
        "pool": _pool(snapshot, report),
        "statistics": _statistics(snapshot, report),
        "moment": None,
        "peak": None,
        "use_over_time": [],
        "block_map": None,
        "rows_held": None,
        "rows": [],
        "prefixes": None,
        "lifetimes": None,
        "most_shared": None,
        "preemptions": None,
        "beams": None,
    }
    groups = [] if report is None else reported_groups(report)
    if snapshot is not None:
        groups = inspected_groups(snapshot, Moment.find(snapshot, query.at))
        _add_blocks(found, snapshot, query)
    elif report is not None:
        found["moment"] = timeline_moment(report, query.at)
        found["peak"] = timeline_moment(report, PEAK)
        found["use_over_time"] = [int(point["blocks_used"]) for point in report.timeline]
    states = None if report is None else reported_states(report)
    if states is not None:
        found["states"] = states
    if report is not None and report.streamed_layers:
        found["streaming"] = reported_reads(report)
    if groups:
        found["groups"] = groups
        found["pool"]["pool_bytes"] = sum(group["pool_bytes"] for group in groups)
    return found


def _pool(snapshot: Snapshot | None, report: SavedReport | None) -> InspectedPool:
    if snapshot is not None:
        sizes = (snapshot.block_size, snapshot.num_blocks, snapshot.bytes_per_token)
        return {**_shape(*sizes), "num_steps": snapshot.num_steps}
    names = ("block_size", "num_blocks", "bytes_per_token")
    return _shape(*(int((report and report.get(name)) or 0) for name in names))


def _shape(block_size: int, num_blocks: int, bytes_per_token: int) -> InspectedPool:
    return {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "bytes_per_token": bytes_per_token,
        "pool_bytes": block_size * num_blocks * bytes_per_token,
    }


def _statistics(snapshot: Snapshot | None, report: SavedReport | None) -> RunCounts:
    """Return hits, misses and other totals of a run."""

    def reported(name: str) -> Number | None:
        return None if report is None else report.get(name)

    swap, recompute = reported("swap"), reported("recompute")
    if snapshot is not None and report is None:
        swap = int(np.count_nonzero(snapshot.preemptions.swapped))
        recompute = len(snapshot.preemptions) - swap
    hits, misses = reported("hits"), reported("misses")
    hit_tokens, prompt_tokens = reported("hit_tokens"), reported("prompt_tokens")
    computed = {
        "swap": swap,
        "recompute": recompute,
        "hit_rate": _rate(hits, misses),
        "token_hit_rate": hit_tokens / prompt_tokens
        if hit_tokens is not None and prompt_tokens
        else None,
    }
    return section_of(
        RunCounts, lambda name: computed[name] if name in computed else reported(name)
    )


def _rate(hits: Number | None, misses: Number | None) -> float | None:
    if hits is None or misses is None or not hits + misses:
        return None
    return hits / (hits + misses)


def _add_blocks(found: Inspection, snapshot: Snapshot, query: InspectionQuery) -> None:
    """Add the sections that need a snapshot."""
    moment = Moment.find(snapshot, query.at)
    top, gone = query.top, snapshot.preemptions
    lives = BlockLives.read(snapshot)
    found["row_stride"] = snapshot.row_stride
    found["use_over_time"] = use_over_time(snapshot)
    found["peak"] = peak_moment(snapshot)
    found["rows"] = [_row(snapshot, row, moment, top) for row in query.rows]
    found["prefixes"] = _prefixes(snapshot, top)
    found["lifetimes"] = lifetimes(lives)
    found["most_shared"] = cast(list[BlockLife], lives.most_shared(top).records())
    first = gone.where(np.arange(min(len(gone), top)))
    beam_rows = beam_rows_of(snapshot)
    found["preemptions"] = {"count": len(gone), "events": preemption_events(first, beam_rows)}
    found["beams"] = inspected_beams(snapshot)
    if moment is not None:
        held = snapshot.holdings
        at_moment = (held.begin <= moment.step) & (moment.step < held.end)
        rows = np.unique(held.row[at_moment])
        found["moment"] = snapshot_moment(snapshot, moment)
        found["rows_held"] = {"count": len(rows), "first": rows[:top].tolist()}
        found["block_map"] = {
            "letters": {letter: state.name.lower() for state, letter in LETTERS.items()},
            "blocks": block_letters(snapshot, moment),
        }


def _row(snapshot: Snapshot, row: int, moment: Moment | None, top: int) -> InspectedRow:
    gone = snapshot.preemptions
    (mine,) = np.nonzero(gone.row == row)
    tables = [] if moment is None else block_tables(snapshot, row, moment)
    periods = residencies(snapshot, row)
    steps = snapshot.samples.steps
    seen = [np.searchsorted(steps, each) for each in periods]
    sampled = [int(steps[first]) for first, after in seen if first < after]
    beams = row_beams(snapshot, row, top)
    found: InspectedRow = {
        "row": row,
        "is_kept": row % snapshot.row_stride == 0,
        "num_stays": len(periods),
        "stays": periods[:top],
        "sampled_at": sampled[0] if sampled else None,
        "tables": tables,
        "shared": shared_blocks(tables),
        "beams": beams,
        "preemptions": preemption_events(gone.where(mine[:top]), () if beams is None else (row,)),
    }
    if snapshot.further:
        found["group_tables"] = [] if moment is None else group_tables(snapshot, row, moment)
    return found


def _prefixes(snapshot: Snapshot, top: int) -> HeldPrefixes:
    nodes = snapshot.prefixes
    saved = sum(nodes.saved.tolist())  # not in 64 bits, which a hostile file could overflow
    return {
        "count": len(nodes),
        "tokens_saved": saved,
        "bytes_saved": saved * snapshot.bytes_per_token,
        "top": top_prefixes(nodes, top, snapshot.bytes_per_token),
    }


def preemption_events(
    preemptions: Preemptions, beam_rows: Collection[int] = ()
) -> list[PreemptionEvent]:
    """Return preemptions as JSON objects, with their causes in words.

    beam_rows: rows whose samples are beams, which are preempted together.
    """
    records = cast(list[PreemptionRecord], preemptions.records())
    return [{**each, "cause": _cause(each, each["row"] in beam_rows)} for each in records]


def _cause(event: PreemptionRecord, is_beam: bool) -> str:
    way = "swap to host memory" if event["swapped"] else "dropping and recomputing them"
    who = f"row {event['row']}"
    if is_beam:
        who += f" (beam {event['sample']}, together with the others)"
    elif event["sample"]:
        who += f" (sample {event['sample']})"
    gave = f"{who} gave up {_count(event['blocks'], 'block')} ({_count(event['tokens'], 'token')})"
    if event["for_row"] < 0:
        return f"step {event['step']:,}: {gave} by {way}"
    other = "it" if event["for_row"] == event["row"] else f"row {event['for_row']}"
    needed = f"{other} needed {_count(event['needed'], 'block')}"
    free = f"{event['free']:,} {'was' if event['free'] == 1 else 'were'} free"
    return f"step {event['step']:,}: {gave} by {way}, because {needed} and {free}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def top_prefixes(nodes: PrefixNodes, count: int, bytes_per_token: int) -> list[HeldPrefix]:
    """Return the nodes that save most, parents before children, in the order of the tree."""
    best = np.sort(np.argsort(-nodes.saved, kind="stable")[:count])
    index_of = {node: index for index, node in enumerate(best.tolist())}
    parents = nodes.parent
    shown: list[HeldPrefix] = []
    for node in index_of:
        above = int(parents[node])
        while above >= 0 and above not in index_of:  # skip nodes that are not listed
            above = int(parents[above])
        saved = int(nodes.saved[node])
        shown.append(
            {
                "parent": index_of.get(above),
                "start": int(nodes.end[above]) if above >= 0 else 0,
                "tokens": int(nodes.end[node]),
                "rows": int(nodes.rows[node]),
                "row": int(nodes.row[node]),
                "tokens_saved": saved,
                "bytes_saved": saved * bytes_per_token,
            }
        )
    return shown


def beam_rows_of(snapshot: Snapshot) -> list[int]:
    """Return the indices of the kept rows that had more than one beam."""
    rows: list[int] = np.unique(snapshot.branchings.row).tolist()
    return rows


def inspected_beams(snapshot: Snapshot) -> InspectedBeams | None:
    """Return the sums of the run, None without beams."""
    every = snapshot.branchings
    if not len(every):
        return None
    return {"rows": len(beam_rows_of(snapshot)), **_counts(every)}


def row_beams(snapshot: Snapshot, row: int, top: int) -> RowBeams | None:
    """Return the sums of a row and its first `top` events, None without beams."""
    mine = snapshot.branchings.where(snapshot.branchings.row == row)
    if not len(mine):
        return None
    first = mine.where(np.arange(min(len(mine), top)))
    events = cast(list[BeamEvent], first.records())
    return {**_counts(mine), "count": len(mine), "events": events}


def _counts(branchings: Branchings) -> BeamCounts:
    forked, died, freed = (
        sum(column.tolist()) for column in (branchings.forked, branchings.died, branchings.freed)
    )
    return {"forked": forked, "died": died, "freed": freed}


def reported_reads(report: SavedReport) -> InspectedReads:
    """Return the report's figures about streamed weights, zeros for missing ones."""

    def figure(name: str) -> float:
        return report.get(name) or 0

    return {
        "pinned_bytes": int(figure("pinned_bytes")),
        "ring_bytes": int(figure("ring_bytes")),
        "streamed_bytes": int(figure("streamed_bytes")),
        "passes": int(figure("passes")),
        "bytes_read": int(figure("bytes_read")),
        "read_s": figure("read_s"),
        "wait_s": figure("wait_s"),
        "layers": report.streamed_layers,
    }


def reported_states(report: SavedReport) -> StateFigures | None:
    """Return the report's state figures, zeros for missing ones; None for a model without recurrent
    layers."""

    def figure(name: str) -> int:
        return int(report.get(name) or 0)

    if report.get("num_slots") is None:
        return None
    return {
        "num_slots": figure("num_slots"),
        "bytes_per_slot": figure("bytes_per_slot"),
        "pool_bytes": figure("num_slots") * figure("bytes_per_slot"),
        "peak_slots": figure("peak_slots"),
        "peak_bytes": figure("peak_slots") * figure("bytes_per_slot"),
        "kept_states": figure("kept_states"),
        "found_states": figure("found_states"),
    }
