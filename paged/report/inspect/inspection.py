"""Inspection: what a finished run did with its pool, as one object that JSON can hold."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pagedrun.paged.report.inspect.block_lives import BlockLives, Lifetimes
from pagedrun.paged.report.inspect.block_table import BlockTable, block_tables, residencies
from pagedrun.paged.report.inspect.moment import PEAK, Moment
from pagedrun.paged.report.inspect.pool_moments import (
    LETTERS,
    block_letters,
    peak_moment,
    snapshot_moment,
    timeline_moment,
    use_over_time,
)
from pagedrun.paged.report.inspect.preemption_causes import preemption_events
from pagedrun.paged.report.inspect.saved_report import SavedReport
from pagedrun.paged.report.inspect.shown_prefixes import top_prefixes
from pagedrun.paged.report.record.snapshot import Snapshot

DEFAULT_TOP = 10
COUNTED = (  # in the report, once for a run
    "hits",
    "misses",
    "hit_tokens",
    "prompt_tokens",
    "achievable_hit_rate",
    "duplicate_rows",
    "bytes_saved",
    "shared_blocks_peak",
    "peak_blocks",
    "block_copies",
    "forks",
    "evictions",
    "swap",
    "recompute",
)


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to see: `at` as `Moment.find` reads it, `rows` by index.

    `top` bounds every list that a long run makes long.
    """

    at: str = PEAK
    rows: Sequence[int] = ()
    top: int = DEFAULT_TOP


def inspect_run(
    snapshot: Snapshot | None, report: SavedReport | None, question: Question
) -> dict[str, Any]:
    """Return what snapshot and report tell; null where the one that would know is missing.

    Raises `UsageError` if `question.at` names no moment.
    """
    found: dict[str, Any] = {
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
    }
    if snapshot is not None:
        return found | _of_blocks(snapshot, question)
    if report is not None:
        found["moment"] = timeline_moment(report, question.at)
        found["peak"] = timeline_moment(report, PEAK)
        found["use_over_time"] = [int(point["blocks_used"]) for point in report.timeline]
    return found


def _pool(snapshot: Snapshot | None, report: SavedReport | None) -> dict[str, Any]:
    names = ("block_size", "num_blocks", "bytes_per_token")
    if snapshot is not None:
        pool: dict[str, Any] = {name: getattr(snapshot, name) for name in names}
    else:
        pool = {name: report.get(name) if report else None for name in names}
    sizes = [pool[name] or 0 for name in names]
    steps = {} if snapshot is None else {"num_steps": snapshot.num_steps}
    return pool | {"pool_bytes": sizes[0] * sizes[1] * sizes[2]} | steps


def _statistics(snapshot: Snapshot | None, report: SavedReport | None) -> dict[str, Any] | None:
    """Return hits, misses and what else is counted once for a run."""
    if report is None and snapshot is None:
        return None
    counted: dict[str, Any] = {name: report.get(name) if report else None for name in COUNTED}
    if snapshot is not None and report is None:
        swapped = int(np.count_nonzero(snapshot.preemptions.swapped))
        counted["swap"], counted["recompute"] = swapped, len(snapshot.preemptions) - swapped
    counted["hit_rate"] = _rate(counted["hits"], counted["misses"])
    hit, prompt = counted["hit_tokens"], counted["prompt_tokens"]
    counted["token_hit_rate"] = None if hit is None or not prompt else hit / prompt
    return counted


def _rate(hits: float | None, misses: float | None) -> float | None:
    if hits is None or misses is None or not hits + misses:
        return None
    return hits / (hits + misses)


def _of_blocks(snapshot: Snapshot, question: Question) -> dict[str, Any]:
    moment = Moment.find(snapshot, question.at)
    top = question.top
    lives = BlockLives.read(snapshot)
    found: dict[str, Any] = {
        "row_stride": snapshot.row_stride,
        "use_over_time": use_over_time(snapshot),
        "peak": peak_moment(snapshot),
        "rows": [_row(snapshot, row, moment, top) for row in question.rows],
        "prefixes": _prefixes(snapshot, top),
        "lifetimes": asdict(Lifetimes.of(lives)),
        "most_shared": _records(lives.most_shared(top)),
        "preemptions": {
            "count": len(snapshot.preemptions),
            "events": preemption_events(
                snapshot.preemptions.where(np.arange(len(snapshot.preemptions))[:top])
            ),
        },
    }
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
    return found


def _row(snapshot: Snapshot, row: int, moment: Moment | None, top: int) -> dict[str, Any]:
    gone = snapshot.preemptions
    (mine,) = np.nonzero(gone.row == row)
    tables = [] if moment is None else block_tables(snapshot, row, moment)
    periods = residencies(snapshot, row)
    steps = snapshot.samples.steps
    seen = [np.searchsorted(steps, each) for each in periods]
    sampled = [int(steps[first]) for first, after in seen if first < after]
    return {
        "row": row,
        "is_kept": row % snapshot.row_stride == 0,
        "num_stays": len(periods),
        "stays": periods[:top],
        "sampled_at": sampled[0] if sampled else None,
        "tables": [_table(table) for table in tables],
        "preemptions": preemption_events(gone.where(mine[:top])),
    }


def _table(table: BlockTable) -> dict[str, Any]:
    last = table.last
    return {
        "sample": table.sample,
        "tokens": table.num_tokens,
        "blocks": [asdict(entry) | {"state": entry.state.name.lower()} for entry in table.entries],
        "last_token": None
        if last is None
        else {
            "token": table.num_tokens - 1,
            "physical": last.physical,
            "offset": last.tokens - 1,
            "slot": table.last_slot,
        },
    }


def _prefixes(snapshot: Snapshot, top: int) -> dict[str, Any]:
    nodes = snapshot.prefixes
    saved = sum(nodes.saved.tolist())  # not in 64 bits, which a file could make too few
    return {
        "count": len(nodes),
        "tokens_saved": saved,
        "bytes_saved": saved * snapshot.bytes_per_token,
        "top": [
            {
                "parent": each.parent,
                "start": each.start,
                "tokens": each.end,
                "rows": each.rows,
                "row": each.row,
                "tokens_saved": each.saved,
                "bytes_saved": each.saved * snapshot.bytes_per_token,
            }
            for each in top_prefixes(nodes, top)
        ],
    }


def _records(lives: BlockLives) -> list[Mapping[str, int]]:
    columns = {name: column.tolist() for name, column in lives.columns().items()}
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
