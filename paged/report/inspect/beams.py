"""What became of the beams of a run, and of a row."""

from typing import cast

import numpy as np

from pagedrun.paged.report.inspect.inspection_sections import (
    BeamCounts,
    BeamEvent,
    InspectedBeams,
    RowBeams,
)
from pagedrun.paged.report.record.snapshot import Snapshot
from pagedrun.paged.report.record.snapshot_tables import Branchings


def beam_rows_of(snapshot: Snapshot) -> list[int]:
    """Return the indices of the rows that had more than one beam, as far as they are kept."""
    rows: list[int] = np.unique(snapshot.branchings.row).tolist()
    return rows


def inspected_beams(snapshot: Snapshot) -> InspectedBeams | None:
    """Return the sums of the run, None without beams."""
    every = snapshot.branchings
    if not len(every):
        return None
    return {"rows": len(beam_rows_of(snapshot)), **_counts(every)}


def row_beams(snapshot: Snapshot, row: int, top: int) -> RowBeams | None:
    """Return the sums of a row and the first `top` steps in them, None without beams."""
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
