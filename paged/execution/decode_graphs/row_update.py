"""RowUpdate: what a device has to be told of the rows of a captured step, on the host."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.execution.logits.early_stops import EarlyStops
from pagedrun.paged.scheduling.sequence_table import UNKNOWN_TOKEN, Int32s, Int64s
from pagedrun.paged.scheduling.step_input import StepInput

INTEGERS = ("input_ids", "positions", "context_lens", "top_k", "seed", "row", "sample")
FLOATS = ("temperature", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """New values of some rows; all others are as the device has advanced them.

    rows: [num_changed] int64, those that a sequence takes or leaves. integers: [7, num_changed]
    int64, see `INTEGERS`, zeros where it leaves. floats: [3, num_changed] float32, see `FLOATS`.
    num_missing: [num_changed] int64, stop_ids: [num_changed, num_stop_ids] int64: see `EarlyStops`;
    without columns in a shape that has no room for them.
    table_rows: [num_taken] int64, rows that a sequence takes; tables: [num_groups, num_taken,
    width] int32, theirs. cells: [num_grown] int64, places in all block tables one behind the other;
    blocks: [num_grown] int32, what comes there.
    unknown: [num_unknown] int64, rows whose newest token only the device has seen; sources:
    [num_unknown] int64, which of the tokens of the step before that is.
    """

    rows: Int64s
    integers: Int64s
    floats: NDArray[np.float32]
    num_missing: Int64s
    stop_ids: Int64s
    table_rows: Int64s
    tables: Int32s
    cells: Int64s
    blocks: Int32s
    unknown: Int64s
    sources: Int64s

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not len(self.rows) and not len(self.cells)

    @classmethod
    def of(
        cls,
        step: StepInput,
        *,
        chunks: Int64s,
        rows: Int64s,
        left: Int64s,
        tables: Int32s,
        grown: tuple[Int64s, Int32s],
        stop_ids: tuple[int, Seq[int]],
    ) -> "RowUpdate":
        """Return what a step that only decodes changes.

        chunks: [num_taken] int64, those that take `rows`. left: [num_left] int64, the rows that
        nobody has any more. tables: [num_groups, num_rows, width], all as they are now. grown:
        `cells` and `blocks`. stop_ids: how many a row has room for, and those of any answer.
        """
        width, eos_token_ids = stop_ids
        num_taken, every = len(chunks), np.concatenate([rows, left])
        integers = np.zeros((len(INTEGERS), len(every)), dtype=np.int64)
        integers[0, :num_taken] = np.maximum(step.input_ids[chunks], 0)
        integers[1, :num_taken] = step.starts[chunks]
        integers[2, :num_taken] = step.ends[chunks]
        for index, name in enumerate(INTEGERS[3:], start=3):
            integers[index, :num_taken] = getattr(step.draws, name)[chunks]
        floats = np.zeros((len(FLOATS), len(every)), dtype=np.float32)
        for index, name in enumerate(FLOATS):
            floats[index, :num_taken] = getattr(step.draws, name)[chunks]
        num_missing = np.zeros(len(every), dtype=np.int64)
        forbidden = np.zeros((len(every), width), dtype=np.int64)
        stops = EarlyStops.of(step.draws, eos_token_ids, width) if width else None
        if stops is not None:
            num_missing[:num_taken] = stops.num_missing.numpy()[chunks]
            forbidden[:num_taken] = stops.stop_ids.numpy()[chunks]
        is_unknown = step.input_ids == UNKNOWN_TOKEN
        sources = np.zeros(step.num_chunks, dtype=np.int64)
        sources[is_unknown] = step.sources
        asks = is_unknown[chunks]
        return cls(
            rows=every,
            integers=integers,
            floats=floats,
            num_missing=num_missing,
            stop_ids=forbidden,
            table_rows=rows,
            tables=tables[:, rows],
            cells=grown[0],
            blocks=grown[1],
            unknown=rows[asks],
            sources=sources[chunks[asks]],
        )
