"""Groups of decoding rows that read the same shared partitions, found from their block tables.

The number of leading partitions that a row reads on the shared path depends on the plan of the
whole file (see `Sequence.num_read_once_tokens`), so that a row's bytes do not depend on the
other rows of its batch. The rows of one shared read change from step to step: those whose block
tables name the same blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.kernels.attention_inputs import PrefixGroups
from pagedrun.kernels.partition import PARTITION_TOKENS

Span = tuple[Int64s, int, int]  # rows, first partition, partition after the last


class PrefixSharing:
    """Groups rows step by step, and reuses the groups of the previous step while they hold.

    They hold while no sequence joins or leaves and tables only grow at their ends. With `share` off
    every row is a group of its own, which gives the same bytes; for comparisons.
    """

    def __init__(self, *, share: bool) -> None:
        self._share = share
        self._last: _Grouped | None = None

    def groups(
        self,
        block_tables: Int32s,
        table_rows: Int32s,
        num_partitions: Int32s,
        block_size: int,
    ) -> PrefixGroups | None:
        """Return the groups of rows with leading shared partitions, `None` without such rows.

        block_tables: [num_tables, max_blocks]. table_rows: [num_rows], the table of each row.
        num_partitions: [num_rows], leading partitions of each row that take the shared path. Groups
        may be reused from an earlier step and must not be changed.
        """
        if not num_partitions.any():
            return None
        blocks = _last_blocks(block_tables, table_rows, num_partitions, block_size)
        last = self._last
        if last is None or not last.is_of(table_rows, num_partitions, blocks):
            groups = _grouped(table_rows, num_partitions, blocks, share=self._share)
            self._last = last = _Grouped(table_rows, num_partitions, blocks, groups)
        return last.groups


def without_rows(groups: PrefixGroups, rows: Int64s) -> PrefixGroups | None:
    """Return groups without some rows, or `None` if no row is left.

    groups: of rows whose index is the index of their table. The remaining rows read as much, and as
    much together, as in new groups; but groups that have become equal are not merged.
    """
    num_partitions = groups.num_partitions.numpy().copy()
    num_partitions[rows] = 0
    members, starts = groups.rows.numpy(), groups.row_starts.numpy()
    is_left = num_partitions[members] > 0
    counts = np.add.reduceat(is_left, starts[:-1], dtype=np.int32)  # no group is empty
    has_rows = counts > 0
    if not has_rows.any():
        return None
    members = members[is_left]
    starts = np.concatenate([[0], np.cumsum(counts[has_rows])]).astype(np.int32)
    return PrefixGroups(
        rows=torch.from_numpy(members),
        row_starts=torch.from_numpy(starts),
        table_rows=torch.from_numpy(members[starts[:-1]]),
        first_partitions=groups.first_partitions[torch.from_numpy(has_rows)],
        last_partitions=groups.last_partitions[torch.from_numpy(has_rows)],
        num_partitions=torch.from_numpy(num_partitions),
    )


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Groups and the values that determine them; see `PrefixSharing.groups` and `_last_blocks`."""

    table_rows: Int32s
    num_partitions: Int32s
    blocks: Int32s
    groups: PrefixGroups

    def is_of(self, table_rows: Int32s, num_partitions: Int32s, blocks: Int32s) -> bool:
        return (
            np.array_equal(self.num_partitions, num_partitions)
            and np.array_equal(self.table_rows, table_rows)
            and np.array_equal(self.blocks, blocks)
        )


def _grouped(
    table_rows: Int32s, num_partitions: Int32s, blocks: Int32s, *, share: bool
) -> PrefixGroups:
    (rows,) = np.nonzero(num_partitions)
    if share:
        spans = sorted(_split(rows, 0, num_partitions, blocks), key=lambda span: span[1])
    else:
        spans = [(rows[i : i + 1], 0, int(num_partitions[rows[i]])) for i in range(len(rows))]
    members = [span[0] for span in spans]

    def int32(values: list[int] | Int64s) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int32))

    return PrefixGroups(
        rows=int32(np.concatenate(members)),
        row_starts=int32(np.cumsum([0, *(len(each) for each in members)])),
        table_rows=int32([int(table_rows[each[0]]) for each in members]),
        first_partitions=int32([first for _, first, _ in spans]),
        last_partitions=int32([last for _, _, last in spans]),
        num_partitions=int32(num_partitions.astype(np.int64)),
    )


def _last_blocks(
    block_tables: Int32s, table_rows: Int32s, num_partitions: Int32s, block_size: int
) -> Int32s:
    """Return the block with the last token of each shared partition, [num_rows, most].

    A block has one content, and by the chain of its key one content before it: rows with the same
    last block of a partition share all of it. Entries after the shared partitions of a row are
    zero, because its table may change there without a change of the groups.
    """
    partitions = np.arange(int(num_partitions.max()))
    ends = (partitions + 1) * PARTITION_TOKENS - 1
    columns = np.minimum(ends // block_size, block_tables.shape[1] - 1)
    blocks: Int32s = block_tables[table_rows[:, None], columns]
    blocks[partitions >= num_partitions[:, None]] = 0
    return blocks


def _split(
    rows: Int64s,
    first: int,
    num_partitions: Int32s,
    blocks: Int32s,
) -> Iterator[Span]:
    """Yield the spans of `rows`, which agree on all partitions before `first`."""
    rows = rows[num_partitions[rows] > first]
    if not len(rows):
        return
    for block in np.unique(blocks[rows, first]):
        members = rows[blocks[rows, first] == block]
        last = int(num_partitions[members].min())
        same = (blocks[members, first:last] == blocks[members[0], first:last]).all(axis=0)
        last = last if same.all() else first + int(same.argmin())
        yield members, first, last
        yield from _split(members, last, num_partitions, blocks)
