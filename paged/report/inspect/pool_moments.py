"""What the pool held at one moment, as counts: from a snapshot, else from the timeline."""

import numpy as np

from pagedrun.paged.report.inspect.block_states import (
    BlockState,
    block_states,
    num_tokens_held,
    state_counts,
)
from pagedrun.paged.report.inspect.inspection_sections import PoolMoment, StateCounts
from pagedrun.paged.report.inspect.moment import PEAK, Moment, choose_sample
from pagedrun.paged.report.inspect.saved_report import SavedReport
from pagedrun.paged.report.record.snapshot import PoolSamples, Snapshot

LETTERS = {
    BlockState.FREE: ".",
    BlockState.CACHED: "C",
    BlockState.PRIVATE: "P",
    BlockState.SHARED: "S",
}


def snapshot_moment(snapshot: Snapshot, moment: Moment) -> PoolMoment:
    """Return the counts of one sample: blocks in each state, allocated ones, tokens in these."""
    return {
        "asked": moment.asked,
        "step": moment.step,
        "time_s": moment.time_s,
        **sample_counts(snapshot.samples, moment.number, snapshot.block_size),
    }


def sample_counts(samples: PoolSamples, number: int, block_size: int) -> StateCounts:
    """Return the counts of a pool in sample `number`."""
    states = block_states(samples, number)
    free, cached, private, shared = np.bincount(states, minlength=len(BlockState)).tolist()
    tokens = num_tokens_held(samples, number)
    return _counts(free, cached, private, shared, tokens, block_size)


def timeline_moment(report: SavedReport, asked: str) -> PoolMoment | None:
    """Return the same from a report's timeline; None if that is empty.

    Raises `UsageError` if `asked` names no moment.
    """
    points = report.timeline
    steps = np.array([point["step"] for point in points], np.int64)
    times = np.array([point["t"] for point in points], np.float64)
    held = np.array([point["blocks_used"] for point in points], np.int64)
    number = choose_sample(asked, steps, times, held, int(steps.max(initial=0)))
    if number is None:
        return None
    point = points[number]
    used, shared, cached = (int(point[f"blocks_{name}"]) for name in ("used", "shared", "cached"))
    free = int(report.get("num_blocks") or 0) - used - cached
    size = int(report.get("block_size") or 0)
    return {
        "asked": asked,
        "step": int(point["step"]),
        "time_s": float(point["t"]),
        **_counts(free, cached, used - shared, shared, int(point["tokens"]), size),
    }


def peak_moment(snapshot: Snapshot) -> PoolMoment | None:
    """Return the counts of the sample in which most blocks were held, None without samples."""
    moment = Moment.find(snapshot, PEAK)
    return None if moment is None else snapshot_moment(snapshot, moment)


def use_over_time(snapshot: Snapshot) -> list[int]:
    """Return the blocks held in each sample."""
    counts = state_counts(snapshot.samples)
    held: list[int] = (counts[:, BlockState.PRIVATE] + counts[:, BlockState.SHARED]).tolist()
    return held


def block_letters(snapshot: Snapshot, moment: Moment) -> str:
    """Return one letter for each block, as in `LETTERS`."""
    alphabet = np.frombuffer("".join(LETTERS[state] for state in BlockState).encode(), np.uint8)
    return alphabet[block_states(snapshot.samples, moment.number)].tobytes().decode()


def _counts(
    free: int, cached: int, private: int, shared: int, tokens: int, block_size: int
) -> StateCounts:
    allocated = private + shared
    slots = allocated * block_size
    return {
        "free": free,
        "cached": cached,
        "private": private,
        "shared": shared,
        "allocated": allocated,
        "tokens": tokens,
        "utilization": tokens / slots if slots else 0.0,
    }
