"""Which decoding rows read which shared partitions together, told from their block tables.

How many leading partitions of a row take the shared path is a matter of the whole file (see
`Sequence.num_read_once_tokens`), so that a row's bytes do not depend on who runs beside it. Which
rows then share a read is a matter of the moment: those whose tables name the same blocks.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixGroups

Span = tuple[NDArray[np.int64], int, int]  # rows, first partition, partition after the last


def group_prefixes(
    block_tables: NDArray[np.int32],
    table_rows: NDArray[np.int32],
    num_partitions: NDArray[np.int32],
    block_size: int,
    *,
    share: bool,
) -> PrefixGroups | None:
    """Return the groups for rows that have leading shared partitions, or `None` if none has.

    block_tables: [num_tables, max_blocks]. table_rows: [num_rows], each row's table.
    num_partitions: [num_rows], how many leading partitions of each row take the shared path.
    With `share` off every row is a group of its own, which gives the same bytes: to compare.
    """
    (rows,) = np.nonzero(num_partitions)
    if not len(rows):
        return None
    if share:
        blocks = _last_blocks(block_tables, table_rows, int(num_partitions.max()), block_size)
        spans = sorted(_split(rows, 0, num_partitions, blocks), key=lambda span: span[1])
    else:
        spans = [(rows[i : i + 1], 0, int(num_partitions[rows[i]])) for i in range(len(rows))]
    members = [span[0] for span in spans]

    def int32(values: list[int] | NDArray[np.int64]) -> torch.Tensor:
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
    block_tables: NDArray[np.int32],
    table_rows: NDArray[np.int32],
    num_partitions: int,
    block_size: int,
) -> NDArray[np.int32]:
    """Return the block that holds the last token of each partition, [num_rows, num_partitions].

    A block has one content, and by the chain of its key one content before it: rows with the same
    last block of a partition share all of it.
    """
    ends = np.arange(1, num_partitions + 1) * PARTITION_TOKENS - 1
    columns = np.minimum(ends // block_size, block_tables.shape[1] - 1)
    return block_tables[table_rows][:, columns]


def _split(
    rows: NDArray[np.int64],
    first: int,
    num_partitions: NDArray[np.int32],
    blocks: NDArray[np.int32],
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
