"""SeatedRows: which sequence has which row of a captured step, and what the device knows of it.

A sequence keeps its row from its first such step to its last, so that a step in which others end
or begin sends the device only what has changed. Rows that nobody has are holes, which compute
nothing that is looked at.
"""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.paged.execution.decode_graphs.graph_shape import GraphShape
from pagedrun.paged.execution.decode_graphs.row_update import RowUpdate
from pagedrun.paged.scheduling.sequence_table import NO_UID, Int32s, Int64s
from pagedrun.paged.scheduling.step_input import StepInput

_NOT_KNOWN = -1  # a context that no step has


class SeatedRows:
    """The books of one graph's buffers, which hold no rows yet.

    tables: [num_groups, num_rows, width] int32. num_partitions: [num_rows] int32, those that each
    row reads with others, 0 in a hole.
    """

    def __init__(self, shape: GraphShape, num_groups: int, block_size: int) -> None:
        self._shape = shape
        self._block_size = block_size
        self._uids: Int64s = np.full(shape.num_rows, NO_UID)
        self._ends: Int64s = np.zeros(shape.num_rows, dtype=np.int64)  # as the device has them
        self._num_blocks: Int64s = np.zeros(shape.num_rows, dtype=np.int64)
        self.tables: Int32s = np.zeros((num_groups, shape.num_rows, shape.width), dtype=np.int32)
        self.num_partitions: Int32s = np.zeros(shape.num_rows, dtype=np.int32)

    def forget(self) -> None:
        """Take note that the buffers do not follow what the sequences do from here on."""
        self._ends[:] = _NOT_KNOWN

    def advance(self, rows: Int64s) -> None:
        """Take note that the device has done a step, and is behind it in these rows."""
        self._ends[rows] += 1

    def seat(
        self, step: StepInput, eos_token_ids: Seq[int], *, reads_together: bool
    ) -> tuple[Int64s, RowUpdate]:
        """Give the sequences of a step that only decodes their rows; those of others are empty.

        Returns the row of each chunk, [num_chunks] int64, and what the device has to be told.
        """
        rows = self._rows_of(step.uids)
        is_seated = rows >= 0
        is_kept = is_seated & (self._ends[rows] == step.ends)
        num_grown = step.num_blocks - self._num_blocks[rows]
        is_kept &= (num_grown >= 0) & (num_grown <= len(step.block_tables))
        if step.transfers:  # which may have put other blocks into a table
            is_kept &= self._has_tables(rows, step)
        is_free = np.ones(self._shape.num_rows, dtype=np.bool_)
        is_free[rows[is_seated]] = False
        was_left = is_free & (self._uids != NO_UID)
        (free,) = np.nonzero(is_free)
        rows[~is_seated] = free[: int((~is_seated).sum())]
        taken, grown = np.flatnonzero(~is_kept), np.flatnonzero(is_kept & (num_grown > 0))
        was_left[rows] = False
        (left,) = np.nonzero(was_left)
        self._note(step, rows, taken, left, reads_together=reads_together)
        update = RowUpdate.of(
            step,
            chunks=taken,
            rows=rows[taken],
            left=left,
            tables=self.tables,
            grown=self._grow(step, rows, grown),
            stop_ids=(self._shape.num_stop_ids, eos_token_ids),
        )
        return rows, update

    def _rows_of(self, uids: Int64s) -> Int64s:
        """Return the row that each sequence has, -1 for none."""
        order = np.argsort(self._uids, kind="stable")
        place = np.searchsorted(self._uids[order], uids)
        rows: Int64s = order[np.minimum(place, len(order) - 1)]
        return np.where(self._uids[rows] == uids, rows, -1)

    def _has_tables(self, rows: Int64s, step: StepInput) -> NDArray[np.bool_]:
        """Return whose tables begin with what was noted of them, up to the step's own token."""
        same = np.ones(len(rows), dtype=np.bool_)
        num_held = -(-step.starts // self._block_size)
        for known, given in zip(self.tables, step.block_tables, strict=True):
            width = min(given.shape[1], known.shape[1])
            is_behind = np.arange(width) >= num_held[:, None]
            same &= ((known[rows, :width] == given[:, :width]) | is_behind).all(axis=1)
        return same

    def _note(
        self, step: StepInput, rows: Int64s, taken: Int64s, left: Int64s, *, reads_together: bool
    ) -> None:
        self._uids[left] = NO_UID
        self._ends[left] = 0
        self.num_partitions[left] = 0
        self._uids[rows], self._ends[rows] = step.uids, step.ends
        self._num_blocks[rows] = step.num_blocks
        partitions = step.num_read_once_tokens[taken] // PARTITION_TOKENS * reads_together
        self.num_partitions[rows[taken]] = partitions
        for known, given in zip(self.tables, step.block_tables, strict=True):
            known[rows[taken]] = 0
            known[rows[taken], : given.shape[1]] = given[taken]

    def _grow(self, step: StepInput, rows: Int64s, grown: Int64s) -> tuple[Int64s, Int32s]:
        """Note the blocks that chunks begin to write to; return `cells` and `blocks`."""
        columns = step.starts[grown] // self._block_size
        _, num_rows, width = self.tables.shape
        cells, blocks = [], []
        for index, (known, given) in enumerate(zip(self.tables, step.block_tables, strict=True)):
            new = given[grown, columns]
            known[rows[grown], columns] = new
            cells.append((index * num_rows + rows[grown]) * width + columns)
            blocks.append(new)
        return np.concatenate(cells), np.concatenate(blocks)
