"""Work items of prefix attention, computed from groups on the host, and its states."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.attention_inputs import PrefixGroups, PrefixResult
from pagedrun.kernels.partition import PARTITION_TOKENS

# Tokens of a prefix, counted from token 0, that give one partial state. Each row's state of a unit
# is written and read once: head_dim * 4 bytes for each query head and unit, where a unit's keys
# and values are 2 * head_dim * 1024 elements for each kv head. Shorter units would write more, in
# longer ones more would be read again where prefixes branch.
UNIT_TOKENS = 1024

UNIT_PARTITIONS = UNIT_TOKENS // PARTITION_TOKENS
ITEM_FIELDS = 6
SPANS = (8, 4, 2, 1)  # possible numbers of units of an item


@dataclass(frozen=True, slots=True)
class PrefixWork:
    """Work items in memory of a fixed size, for captured launches.

    A prefix is read in units of `UNIT_TOKENS`, counted from token 0; a row's last unit ends with
    its prefix. Where groups branch inside a unit, the unit is read once for each branch instead of
    being cut, since branches change from step to step: a row's unit is always computed from the
    same keys in the same order. An item is some units (or a part of the last one) for up to
    `tile_rows` rows that see the same of them. It writes one state, merged from those of its
    units; their number follows from the number of programs and does not change bytes.

    items: [max_items, 6] int32: the row of the block tables, the first unit, its tokens, the first
    entry in `rows`, the number of rows, the index of the state among those of its rows. num_items:
    [1] int32. rows: [max_entries] int32. first_slots, num_states, num_partitions: [max_rows] int32,
    the first slot of a row in `PrefixPartials`, its number of states and the partitions in them; 0
    for rows without a prefix. max_slots: capacity in states. at_once: items that run at the same
    time; 0: no item has several units. All tensors are parts of `memory`, filled by one copy.
    """

    items: Tensor
    num_items: Tensor
    rows: Tensor
    first_slots: Tensor
    num_states: Tensor
    num_partitions: Tensor
    tile_rows: int
    max_slots: int
    at_once: int
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
        at_once: int = 0,
    ) -> "PrefixWork":
        """Return work without items. `tile_rows` and `at_once` do not change a row's bytes."""
        sizes = (max_items * ITEM_FIELDS, 1, max_entries, *[max_rows] * 3)
        # Each part begins on 16 bytes: a kernel is compiled anew for a pointer that does not.
        memory = torch.zeros(sum(map(_aligned, sizes)), dtype=torch.int32, device=device)
        parts = memory.split([_aligned(size) for size in sizes])
        items, num_items, rows, first_slots, num_states, num_partitions = (
            part[:size] for part, size in zip(parts, sizes, strict=True)
        )
        return cls(
            items.view(-1, ITEM_FIELDS),
            num_items,
            rows,
            first_slots,
            num_states,
            num_partitions,
            tile_rows,
            max_slots,
            at_once,
            memory,
        )

    @classmethod
    def of(
        cls, groups: PrefixGroups, tile_rows: int, device: torch.device, at_once: int = 0
    ) -> "PrefixWork":
        """Return work with the items of `groups`, in memory of their size."""
        table = _Groups.of(groups)
        cut = table.cut(tile_rows, at_once)
        work = cls.allocate(
            max_items=len(cut.items),
            max_entries=len(table.rows),
            max_rows=len(table.num_partitions),
            max_slots=int(cut.num_states.sum()),
            tile_rows=tile_rows,
            device=device,
            at_once=at_once,
        )
        work.write(groups)
        return work

    def write(self, groups: PrefixGroups) -> None:
        """Replace the items by those of `groups` (tensors on the host), in stream order.

        The host may be ahead of the device, so each write has page-locked memory of its own; torch
        reuses it when the copy is done. Raises `ValueError` where the memory is too small.
        """
        table = _Groups.of(groups)
        cut = table.cut(self.tile_rows, self.at_once)
        items, num_states = cut.items, cut.num_states
        num_rows = len(table.num_partitions)
        for what, needed, room in (
            ("items", len(items), len(self.items)),
            ("entries", len(table.rows), len(self.rows)),
            ("rows", num_rows, len(self.num_partitions)),
            ("slots", int(num_states.sum()), self.max_slots),
        ):
            if needed > room:
                raise ValueError(f"prefix groups need {needed} {what}, there is room for {room}")
        sizes = (self.items.numel(), 1, len(self.rows), *[len(self.num_partitions)] * 3)
        staging = torch.zeros(len(self.memory), dtype=torch.int32, pin_memory=self.memory.is_cuda)
        fields = np.split(staging.numpy(), np.cumsum([_aligned(size) for size in sizes])[:-1])
        fields[0][: items.size] = items.ravel()
        fields[1][0] = len(items)
        fields[2][: len(table.rows)] = table.rows
        first_slots = np.cumsum(num_states) - num_states
        of_rows = (first_slots, num_states, table.num_partitions)
        for field, values in zip(fields[3:], of_rows, strict=True):
            field[:num_rows] = values
        self.memory.copy_(staging, non_blocking=True)


def _aligned(size: int) -> int:
    """Return the least number of int32 that fill 16 bytes each."""
    return -(-size // 4) * 4


@dataclass(frozen=True, slots=True)
class _Cut:
    """items: [num_items, 6], see `PrefixWork`. num_states: [num_rows], of each row."""

    items: NDArray[np.int32]
    num_states: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups as arrays, with each group's rows in the order of items.

    rows: [num_entries], the rows whose prefix ends with the group first. group_of, is_last:
    [num_entries], the group of each, and whether its prefix ends with it. starts, counts, first,
    last, tables: [num_groups]. num_ending: [num_groups], how many rows end with it.
    num_partitions: [num_rows].
    """

    rows: NDArray[np.int32]
    group_of: NDArray[np.int64]
    is_last: NDArray[np.bool_]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    num_ending: NDArray[np.int64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    tables: NDArray[np.int32]
    num_partitions: NDArray[np.int32]

    @classmethod
    def of(cls, groups: PrefixGroups) -> "_Groups":
        starts, rows = groups.row_starts.numpy(), groups.rows.numpy()
        last, num_partitions = groups.last_partitions.numpy(), groups.num_partitions.numpy()
        counts = np.diff(starts)
        group_of = np.repeat(np.arange(len(counts)), counts)
        goes_on = num_partitions[rows] != last[group_of]
        order = np.lexsort((goes_on, group_of))
        is_last = ~goes_on[order]
        num_ending = np.bincount(group_of, weights=~goes_on, minlength=len(counts))
        return cls(
            rows[order],
            group_of,
            is_last,
            starts[:-1],
            counts,
            num_ending.astype(np.int64),
            groups.first_partitions.numpy(),
            last,
            groups.table_rows.numpy(),
            num_partitions,
        )

    def cut(self, tile_rows: int, at_once: int) -> _Cut:
        """Return the items, and the number of states of each row.

        A group reads the units that end inside it: it is the last group of its rows there. A unit
        in which it ends itself is read for the rows whose prefix ends there too; the others read
        that unit in a later group, from its beginning.
        """
        first_unit, end_unit = self.first // UNIT_PARTITIONS, self.last // UNIT_PARTITIONS
        span = _span(end_unit - first_unit, self.counts, tile_rows, at_once)
        num_spans = -(-(end_unit - first_unit) // span)
        tail = self.last % UNIT_PARTITIONS * PARTITION_TOKENS
        num_states = np.bincount(
            self.rows, weights=num_spans[self.group_of], minlength=len(self.num_partitions)
        )
        full = _cut(num_spans, self.counts, tile_rows)
        ending = np.where(tail > 0, self.num_ending, 0)
        part = _cut(np.ones_like(num_spans), ending, tile_rows)
        groups = np.concatenate([full[0], part[0]])
        at = np.concatenate([full[1], num_spans[part[0]]])
        unit = np.minimum(first_unit[groups] + at * span, end_unit[groups])
        tokens = np.minimum(end_unit[groups] - unit, span) * UNIT_TOKENS
        tokens[len(full[0]) :] = tail[part[0]]
        offset, count = (np.concatenate(pair) for pair in zip(full[2:], part[2:], strict=True))
        begins = self.starts[groups] + offset
        # How many states the rows of an item have of the groups before: the same for all of them.
        states = self._states_before(num_spans)[begins] + at
        columns = (self.tables[groups], unit, tokens, begins, count, states)
        num_states[self.rows[self.is_last & (tail[self.group_of] > 0)]] += 1  # a row ends once
        return _Cut(np.stack(columns, axis=1).astype(np.int32), num_states.astype(np.int64))

    def _states_before(self, num_spans: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of states of each entry's row in the groups before."""
        order = np.argsort(self.rows, kind="stable")  # a row's groups stay in their order
        spans = num_spans[self.group_of][order]
        before = np.cumsum(spans) - spans
        rows = self.rows[order]
        is_first = np.ones(len(rows), dtype=bool)
        is_first[1:] = rows[1:] != rows[:-1]
        begun = np.maximum.accumulate(np.where(is_first, np.arange(len(rows)), 0))
        states = np.empty(len(rows), dtype=np.int64)
        states[order] = before - before[begun]
        return states


def _span(
    num_units: NDArray[np.int32], counts: NDArray[np.int32], tile_rows: int, at_once: int
) -> int:
    """Return the units of an item: the most that do not delay the last program.

    All units are assumed to take the same time. Programs take each `at_once`-th item."""
    if not at_once:
        return 1

    def units_of_the_busiest(span: int) -> int:
        group, index, *_ = _cut(-(-num_units // span), counts, tile_rows)
        units = np.minimum(num_units[group] - index * span, span)
        rounds = np.zeros((-(-len(units) // at_once), at_once), dtype=np.int64)
        rounds.ravel()[: len(units)] = units
        return int(rounds.sum(axis=0).max())

    needed = [units_of_the_busiest(span) for span in SPANS]
    return SPANS[needed.index(min(needed))]


def _cut(
    num_spans: NDArray[np.int64] | NDArray[np.int32],
    counts: NDArray[np.int64] | NDArray[np.int32],
    tile_rows: int,
) -> tuple[NDArray[np.int64], ...]:
    """Return group, span, first row and number of rows of each tile of rows of each span."""
    num_tiles = -(-counts // tile_rows)
    num_items = num_spans * num_tiles
    group = np.repeat(np.arange(len(counts)), num_items)
    index = np.arange(len(group)) - np.repeat(np.cumsum(num_items) - num_items, num_items)
    offset = index % num_tiles[group] * tile_rows
    return group, index // num_tiles[group], offset, np.minimum(counts[group] - offset, tile_rows)


@dataclass(frozen=True, slots=True)
class PrefixPartials(PrefixResult):
    """States of query rows over the units of their prefixes, for `decode_attention` to merge.

    Row r's states, each of one unit or merged of several, lie from slot `first_slots[r]` on, in
    ascending order. For a state see `PrefixState`, the result of merging. Other slots are
    undefined.

    max_scores, sum_exps: [num_slots, num_heads] float32. accs: [num_slots, num_heads, head_dim]
    float32.
    first_slots, num_states, num_partitions: [num_rows] int32, partitions being those of
    `PARTITION_TOKENS`.
    """

    max_scores: Tensor
    sum_exps: Tensor
    accs: Tensor
    first_slots: Tensor
    num_states: Tensor
    num_partitions: Tensor
