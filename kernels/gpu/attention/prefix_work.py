"""The work items of prefix attention on a GPU, made from groups on the host."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.gpu.attention.prefix_partials import UNIT_TOKENS
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixGroups

UNIT_PARTITIONS = UNIT_TOKENS // PARTITION_TOKENS
ITEM_FIELDS = 5


@dataclass(frozen=True, slots=True)
class PrefixWork:
    """Work items in memory of a fixed size, which a captured launch reads again at each step.

    A prefix is read in units of `UNIT_TOKENS`, counted from token 0; a row's last unit ends with
    its prefix. Where groups branch inside a unit, the unit is read once for each branch rather than
    cut, since who is on which branch changes from step to step: so what a row's unit gives is
    always made of the same keys in the same order. An item is one unit (or a last one's part) for
    up to `tile_rows` rows that see the same of it.

    items: [max_items, 5] int32, of each: the row of the block tables, the unit, its tokens, the
    first entry in `rows`, the number of rows. num_items: [1] int32, how many there are. rows:
    [max_entries] int32. first_slots, num_partitions: [max_rows] int32: where a row's states begin
    in `PrefixPartials`, and what is in them; 0 for rows without a prefix. max_slots: how many
    states there is room for. All tensors are parts of `memory`, which is filled by one copy.
    """

    items: Tensor
    num_items: Tensor
    rows: Tensor
    first_slots: Tensor
    num_partitions: Tensor
    tile_rows: int
    max_slots: int
    memory: Tensor

    @classmethod
    def allocate(
        cls,
        *,
        max_items: int,
        max_entries: int,
        max_rows: int,
        max_slots: int,
        tile_rows: int,
        device: torch.device,
    ) -> "PrefixWork":
        """Return work without items. What becomes of `tile_rows` does not change a row's bytes."""
        sizes = (max_items * ITEM_FIELDS, 1, max_entries, max_rows, max_rows)
        memory = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        items, num_items, rows, first_slots, num_partitions = memory.split(sizes)
        return cls(
            items.view(-1, ITEM_FIELDS),
            num_items,
            rows,
            first_slots,
            num_partitions,
            tile_rows,
            max_slots,
            memory,
        )

    @classmethod
    def of(cls, groups: PrefixGroups, tile_rows: int, device: torch.device) -> "PrefixWork":
        """Return work with the items of `groups`, in memory that just holds them."""
        table = _Groups.of(groups)
        num_slots = int(table.num_units.sum())
        work = cls.allocate(
            max_items=len(table.items(tile_rows)),
            max_entries=len(table.rows),
            max_rows=len(table.num_partitions),
            max_slots=num_slots,
            tile_rows=tile_rows,
            device=device,
        )
        work.write(groups)
        return work

    def write(self, groups: PrefixGroups) -> None:
        """Replace the items by those of `groups` (tensors on the host), in stream order.

        The host may be ahead of the device, so each write has page-locked memory of its own; torch
        reuses it when the copy is done. Raises `ValueError` where the memory is too small.
        """
        table = _Groups.of(groups)
        items = table.items(self.tile_rows)
        num_slots = int(table.num_units.sum())
        num_rows = len(table.num_partitions)
        for what, needed, room in (
            ("items", len(items), len(self.items)),
            ("entries", len(table.rows), len(self.rows)),
            ("rows", num_rows, len(self.num_partitions)),
            ("slots", num_slots, self.max_slots),
        ):
            if needed > room:
                raise ValueError(f"prefix groups need {needed} {what}, there is room for {room}")
        sizes = (self.items.numel(), 1, len(self.rows), *[len(self.num_partitions)] * 2)
        staging = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=self.memory.is_cuda)
        fields = np.split(staging.numpy(), np.cumsum(sizes)[:-1])
        fields[0][: items.size] = items.ravel()
        fields[1][0] = len(items)
        fields[2][: len(table.rows)] = table.rows
        for field, values in zip(
            fields[3:], (table.first_slots, table.num_partitions), strict=True
        ):
            field[:num_rows] = values
        self.memory.copy_(staging, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups as arrays, each group's rows in the order that items want.

    rows: [num_entries], the rows whose prefix ends with the group first. starts, counts, first,
    last, tables: [num_groups]; num_ending: [num_groups], how many rows end with it. num_partitions,
    num_units, first_slots: [num_rows].
    """

    rows: NDArray[np.int32]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    num_ending: NDArray[np.int64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    tables: NDArray[np.int32]
    num_partitions: NDArray[np.int32]
    num_units: NDArray[np.int32]
    first_slots: NDArray[np.int32]

    @classmethod
    def of(cls, groups: PrefixGroups) -> "_Groups":
        starts, rows = groups.row_starts.numpy(), groups.rows.numpy()
        last, num_partitions = groups.last_partitions.numpy(), groups.num_partitions.numpy()
        counts = np.diff(starts)
        group_of = np.repeat(np.arange(len(counts)), counts)
        goes_on = num_partitions[rows] != last[group_of]
        order = np.lexsort((goes_on, group_of))
        num_ending = np.bincount(group_of, weights=~goes_on, minlength=len(counts))
        num_units = -(-num_partitions // UNIT_PARTITIONS)
        first_slots = np.cumsum(num_units, dtype=np.int32) - num_units
        return cls(
            rows[order],
            starts[:-1],
            counts,
            num_ending.astype(np.int64),
            groups.first_partitions.numpy(),
            last,
            groups.table_rows.numpy(),
            num_partitions,
            num_units,
            first_slots,
        )

    def items(self, tile_rows: int) -> NDArray[np.int32]:
        """Return [num_items, 5], see `PrefixWork`.

        A group reads the units that end inside it: it is the last group of its rows there. A unit
        in which it ends itself is read for the rows whose prefix ends there too; the others read
        that unit in a later group, from its beginning.
        """
        first_unit, end_unit = self.first // UNIT_PARTITIONS, self.last // UNIT_PARTITIONS
        tail = self.last % UNIT_PARTITIONS * PARTITION_TOKENS
        full = _cut(first_unit, end_unit, self.counts, tile_rows)
        ending = np.where(tail > 0, self.num_ending, 0)
        part = _cut(end_unit, end_unit + 1, ending, tile_rows)
        tokens = np.full(len(full[0]) + len(part[0]), UNIT_TOKENS)
        tokens[len(full[0]) :] = tail[part[0]]
        group, unit, offset, count = (np.concatenate(pair) for pair in zip(full, part, strict=True))
        columns = (self.tables[group], unit, tokens, self.starts[group] + offset, count)
        return np.stack(columns, axis=1).astype(np.int32)


def _cut(
    first_unit: NDArray[np.int32],
    end_unit: NDArray[np.int32],
    counts: NDArray[np.int64] | NDArray[np.int32],
    tile_rows: int,
) -> tuple[NDArray[np.int64], ...]:
    """Return group, unit, first row and number of rows of each tile of rows of each unit."""
    num_tiles = -(-counts // tile_rows)
    num_items = (end_unit - first_unit) * num_tiles
    group = np.repeat(np.arange(len(counts)), num_items)
    index = np.arange(len(group)) - np.repeat(np.cumsum(num_items) - num_items, num_items)
    unit = first_unit[group] + index // num_tiles[group]
    offset = index % num_tiles[group] * tile_rows
    return group, unit, offset, np.minimum(counts[group] - offset, tile_rows)
