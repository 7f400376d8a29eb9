"""Contents of the pools at one moment of a run, as counts and block states.

The moment is selected by `--at` (a step, a share, a time, the peak); the counts come from a
snapshot or, less detailed, from the timeline of a report.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.array_types import Float64s, Int64s
from pagedrun.paged.metrics.inspection_sections import (
    GroupTable,
    HeldBlock,
    InspectedGroup,
    PoolMoment,
    StateCounts,
)
from pagedrun.paged.metrics.report_sections import group_figures
from pagedrun.paged.metrics.saved_report import SavedReport
from pagedrun.paged.metrics.snapshot import GroupSamples, PoolSamples, Snapshot
from pagedrun.paged.values.errors import UsageError, option

States = NDArray[np.uint8]


class BlockState(IntEnum):
    """State of a block: free and empty, free with cached content, one holder, several holders."""

    FREE = 0
    CACHED = 1
    PRIVATE = 2
    SHARED = 3


def block_states(samples: PoolSamples, number: int) -> States:
    """Return the `BlockState` of each block in sample `number`, [num_blocks] uint8."""
    ref_counts = samples.ref_counts[number]
    states: States = np.where(
        ref_counts > 1,
        np.uint8(BlockState.SHARED),
        np.where(
            ref_counts == 1,
            np.uint8(BlockState.PRIVATE),
            np.where(
                samples.fills[number] > 0, np.uint8(BlockState.CACHED), np.uint8(BlockState.FREE)
            ),
        ),
    )
    return states


def state_counts(samples: PoolSamples) -> Int64s:
    """Return the number of blocks in each state, [num_samples, 4] int64, by `BlockState`."""
    counts = np.zeros((len(samples), len(BlockState)), dtype=np.int64)
    for number in range(len(samples)):  # one at a time, to save memory
        counts[number] = np.bincount(block_states(samples, number), minlength=len(BlockState))
    return counts


def num_tokens_held(samples: PoolSamples, number: int) -> int:
    """Return the tokens in held blocks in sample `number`; a shared block counts once."""
    fills = samples.fills[number].astype(np.int64)
    return int(fills[samples.ref_counts[number] > 0].sum())


PEAK, FIRST, LAST = "peak", "first", "last"
_ASKED = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)(?P<unit>%|s|)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Moment:
    """Sample `number` of a snapshot: after `step` was launched, `time_s` seconds into the run."""

    number: int
    step: int
    time_s: float
    asked: str

    @classmethod
    def find(cls, snapshot: Snapshot, asked: str) -> "Moment | None":
        """Return the moment with name `asked`; None for a snapshot without samples.

        `peak` (most blocks held, the first time), `first`, `last`, a step (`41`), a share of the
        run's steps (`50%`) or a time (`1.5s`): the last sample that is not later, or else the first
        one. Raises `UsageError` for any other name.
        """
        samples = snapshot.samples
        counts = state_counts(samples)
        held = counts[:, BlockState.PRIVATE] + counts[:, BlockState.SHARED]
        number = choose_sample(asked, samples.steps, samples.times, held, snapshot.num_steps)
        return None if number is None else cls.of(snapshot, number, asked)

    @classmethod
    def of(cls, snapshot: Snapshot, number: int, asked: str = "") -> "Moment":
        """Return the moment of sample `number`."""
        samples = snapshot.samples
        return cls(number, int(samples.steps[number]), float(samples.times[number]), asked)


def choose_sample(
    asked: str, steps: Int64s, times: Float64s, num_held: Int64s, num_steps: int
) -> int | None:
    """Return the index of the sample with name `asked`, see `Moment.find`; None without samples.

    steps, times: [num_samples], rising. num_held: [num_samples], blocks held in each.
    """
    match = _ASKED.fullmatch(asked)
    if asked not in (PEAK, FIRST, LAST) and (
        match is None or (not match["unit"] and "." in match["number"])
    ):
        raise UsageError(
            f"{option('at')} {asked}: name a step (41), a share of the run (50%), a time (1.5s), "
            f"{PEAK}, {FIRST} or {LAST}"
        )
    if match is not None and match["unit"] == "%" and float(match["number"]) > 100:
        raise UsageError(f"{option('at')} {asked}: a run has 100%")
    if not len(steps):
        return None
    if match is None:
        return {FIRST: 0, LAST: len(steps) - 1, PEAK: int(np.argmax(num_held))}[asked]
    value = float(match["number"])
    if match["unit"] == "s":
        index = np.searchsorted(times, value, side="right")
    else:
        step = value * num_steps / 100 if match["unit"] else value
        index = np.searchsorted(steps, step, side="right")
    return max(int(index) - 1, 0)


LETTERS = {
    BlockState.FREE: ".",
    BlockState.CACHED: "C",
    BlockState.PRIVATE: "P",
    BlockState.SHARED: "S",
}


def snapshot_moment(snapshot: Snapshot, moment: Moment) -> PoolMoment:
    """Return the counts of one sample."""
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
    """Return the counts of one point of a report's timeline; None if that is empty.

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
    """Return the counts of the sample with most blocks held, None without samples."""
    moment = Moment.find(snapshot, PEAK)
    return None if moment is None else snapshot_moment(snapshot, moment)


def use_over_time(snapshot: Snapshot) -> list[int]:
    """Return the number of blocks held in each sample."""
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


def inspected_groups(snapshot: Snapshot, moment: Moment | None) -> list[InspectedGroup]:
    """Return the pool of each group, none for a model with a single group."""
    first = snapshot.first_group
    if first is None:
        return []
    held = np.count_nonzero(snapshot.samples.ref_counts, axis=1)
    shapes = [first, *(group.shape for group in snapshot.further)]
    peaks = [int(held.max(initial=0)), *(group.peak_blocks for group in snapshot.further)]
    pools = [snapshot.samples, *(_samples_of(snapshot, group) for group in snapshot.further)]
    size = snapshot.block_size
    return [
        {
            **group_figures(shape, peak, size),
            "moment": None if moment is None else sample_counts(pool, moment.number, size),
        }
        for shape, peak, pool in zip(shapes, peaks, pools, strict=True)
    ]


def reported_groups(report: SavedReport) -> list[InspectedGroup]:
    """Return the pools of the groups in a report."""
    return [{**each, "moment": None} for each in report.groups]


def group_tables(snapshot: Snapshot, row: int, moment: Moment) -> list[GroupTable]:
    """Return the block tables of a row's samples in the further groups."""
    found: list[GroupTable] = []
    for number, group in enumerate(snapshot.further, start=1):
        states = block_states(_samples_of(snapshot, group), moment.number)
        ref_counts, fills = group.ref_counts[moment.number], group.fills[moment.number]
        for sample, first, blocks in group.tables_of(row, moment.number):
            held: list[HeldBlock] = [
                {
                    "logical": logical,
                    "physical": block,
                    "ref_count": int(ref_counts[block]),
                    "state": BlockState(states[block]).name.lower(),
                    "tokens": int(fills[block]),
                }
                for logical, block in enumerate(blocks.tolist(), start=first)
            ]
            shape = group.shape
            found.append(
                {
                    "group": number,
                    "num_layers": shape.num_layers,
                    "window": shape.window,
                    "sample": sample,
                    "blocks": held,
                }
            )
    return found


def _samples_of(snapshot: Snapshot, group: GroupSamples) -> PoolSamples:
    """Return the samples of the pool of a further group."""
    samples = snapshot.samples
    return PoolSamples(samples.steps, samples.times, group.ref_counts, group.fills)
