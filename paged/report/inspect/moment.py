"""Moment: the sample of a snapshot that somebody wants to see, and how they may ask for it."""

import re
from dataclasses import dataclass

import numpy as np

from pagedrun.paged.report.inspect.block_states import BlockState, state_counts
from pagedrun.paged.report.record.snapshot import Snapshot
from pagedrun.paged.report.record.snapshot_tables import Float64s, Int64s
from pagedrun.paged.values.errors import UsageError, option

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
        """Return the moment that `asked` names; None if the snapshot has no samples at all.

        `peak` (most blocks held, the first time), `first`, `last`, a step (`41`), a share of the
        run's steps (`50%`) or a time (`1.5s`): there the last sample that is not later, or the
        first one. Raises `UsageError` for anything else.
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
    """Return which of the samples `asked` names, as `Moment.find` does; None if there are none.

    steps, times and num_held: [num_samples], the first two rising; blocks held in each.
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
        place = np.searchsorted(times, value, side="right")
    else:
        step = value * num_steps / 100 if match["unit"] else value
        place = np.searchsorted(steps, step, side="right")
    return max(int(place) - 1, 0)
