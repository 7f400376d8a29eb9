"""Moment: the sample of a snapshot that somebody wants to see, and how they may ask for it."""

import re
from dataclasses import dataclass

import numpy as np

from pagedrun.paged.errors import UsageError
from pagedrun.paged.report.block_states import BlockState, state_counts
from pagedrun.paged.report.snapshot import Snapshot

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
        match = _ASKED.fullmatch(asked)
        is_step = match is not None and not match["unit"] and "." not in match["number"]
        if asked not in (PEAK, FIRST, LAST) and not (is_step or (match and match["unit"])):
            raise UsageError(
                f"--at {asked}: name a step (41), a share of the run (50%), a time (1.5s), "
                f"{PEAK}, {FIRST} or {LAST}"
            )
        if not len(samples):
            return None
        if match is None:
            number = {FIRST: 0, LAST: len(samples) - 1}.get(asked, -1)
            return cls.of(snapshot, peak_number(snapshot) if number < 0 else number, asked)
        value = float(match["number"])
        if match["unit"] == "%" and value > 100:
            raise UsageError(f"--at {asked}: a run has 100%")
        if match["unit"] == "s":
            place = np.searchsorted(samples.times, value, side="right")
        else:
            step = value * snapshot.num_steps / 100 if match["unit"] else value
            place = np.searchsorted(samples.steps, step, side="right")
        return cls.of(snapshot, max(int(place) - 1, 0), asked)

    @classmethod
    def of(cls, snapshot: Snapshot, number: int, asked: str = "") -> "Moment":
        """Return the moment of sample `number`."""
        samples = snapshot.samples
        return cls(number, int(samples.steps[number]), float(samples.times[number]), asked)


def peak_number(snapshot: Snapshot) -> int:
    """Return the number of the first sample in which most blocks are held."""
    counts = state_counts(snapshot.samples)
    return int(np.argmax(counts[:, BlockState.PRIVATE] + counts[:, BlockState.SHARED]))
