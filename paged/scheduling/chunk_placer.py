"""ChunkPlacer: allocates blocks for the tokens that a step computes, and records them as stored."""

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Bools, Int64s
from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.scheduling.kv_groups import KVGroup
from pagedrun.paged.scheduling.scheduler_state import SchedulerState
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import NO_SCORES
from pagedrun.paged.scheduling.step_input import StepBuilder


class ChunkPlacer:
    """Places chunks one by one, or those of all sequences that decode at once."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._pool = state.pool
        self._table = state.table
        self._states = state.states

    def decode(self, running: Seq[Sequence], places: Int64s, budget: int, step: StepBuilder) -> int:
        """Place the first sequences that run, as long as they decode and memory and budget last.

        Each computes its newest token; the beams of a request are placed all, or none. places: of
        those that run. Returns how many they are; the books are what they would be had they been
        placed one by one.
        """
        table = self._table
        every, places = places, places[:budget]
        starts = table.num_computed_tokens[places]
        decodes = (starts >= table.num_prompt_tokens[places]) & (
            starts == table.num_tokens(places) - 1
        )
        decodes &= table.num_stored_tokens[places] == starts
        decodes &= table.num_beams[places] <= 1  # not of one that waits for all of its beams
        if not decodes.all():
            places = places[: int(decodes.argmin())]
        places = places[: self._without_part(every, len(places))]
        starts = starts[: len(places)]
        needs = []
        num_fit = len(places)
        for group in self._state.groups:
            group.free_all_behind(places, starts)
            needs.append(_NewBlocks.of(group, places, starts))
            num_fit = min(num_fit, needs[-1].num_fit)
        needs_slot = self._states.needs_slot(places)
        num_fit = min(num_fit, self._states.num_fit(needs_slot))
        num_fit = self._without_part(every, num_fit)
        places, starts = places[:num_fit], starts[:num_fit]
        needs_slot = needs_slot[:num_fit]
        if needs_slot.any() or any(each.is_shared[:num_fit].any() for each in needs):
            is_needed = [each.is_needed[:num_fit] for each in needs]
            for position in np.flatnonzero(np.any([*is_needed, needs_slot], axis=0)).tolist():
                has_room = self.reserve(running[position], int(starts[position]) + 1, step)
                assert has_room, "fewer blocks are free than were counted"
        else:
            for each in needs:
                missing = np.flatnonzero(each.is_needed[:num_fit]).tolist()
                self._append_blocks(each.group, [running[position] for position in missing])
        index = starts // self._pool.block_size
        offsets = starts - index * self._pool.block_size
        for group in self._state.groups:
            blocks = group.tables.ids[places, index]
            group.pool.record_fills(blocks, offsets + 1)
            group.written.note(blocks, offsets)
        ends = starts + 1
        ever = table.num_tokens_ever_computed[places]
        self._state.counts.computed_tokens += len(places)
        self._state.counts.recomputed_tokens += int((ever > starts).sum())
        table.num_tokens_ever_computed[places] = np.maximum(ever, ends)
        table.num_computed_tokens[places] = ends
        table.num_stored_tokens[places] = ends
        step.decode(places)
        self._states.advance(places, step)
        return len(places)

    def _without_part(self, places: Int64s, count: int) -> int:
        """Return how many of the first `count` sequences are left without beams of whose group
        others come behind them."""
        table = self._table
        if not 0 < count < len(places) or not table.num_beams[places[count]]:
            return count
        is_other = table.row[places[:count]] != table.row[places[count]]
        return int(np.flatnonzero(is_other)[-1]) + 1 if is_other.any() else 0

    def _append_blocks(self, group: KVGroup, sequences: Seq[Sequence]) -> None:
        """Give each of them a block of a group; so many are free."""
        new = group.pool.allocate(len(sequences))
        assert new is not None, "fewer blocks are free than were counted"
        for sequence, block_id in zip(sequences, new, strict=True):
            group.tables.append_one(sequence.place, block_id)
            if not group.index:
                self._state.residency.append(sequence, block_id)

    def num_tokens_held(self, sequence: Sequence) -> int:
        """Return up to which token a sequence has blocks in all groups."""
        ends = [int(group.tables.ends[sequence.place]) for group in self._state.groups]
        return min(ends) * self._pool.block_size

    def reserve(self, sequence: Sequence, end: int, step: StepBuilder) -> bool:
        """Make room for tokens up to `end`: own the block being written, allocate those missing.

        Where there is a window, what lies behind it is given back first.
        """
        has_blocks = all(self._reserve(group, sequence, end, step) for group in self._state.groups)
        is_idle = end == sequence.num_computed_tokens
        return has_blocks and (is_idle or self._states.reserve(sequence.place))

    def _reserve(self, group: KVGroup, sequence: Sequence, end: int, step: StepBuilder) -> bool:
        pool, tables, place = group.pool, group.tables, sequence.place
        group.free_behind(place, sequence.num_computed_tokens)
        num_stored = sequence.num_stored_tokens
        index = num_stored // pool.block_size
        if tables.has(place, index) and num_stored < end:
            shared = tables.block(place, index)
            if pool.ref_count(shared) > 1:
                own = pool.fork_for_write(shared)
                if own is None:
                    return False
                tables.replace(place, index, own)
                if not group.index:
                    self._state.residency.replace(sequence, index)
                step.transfers.append(BlockTransfer(TransferKind.COPY, shared, own, group.index))
        missing = pool.num_blocks_for(end) - int(tables.ends[place])
        if missing > 0:
            new = pool.allocate(missing)
            if new is None:
                return False
            tables.append(place, new)
            if not group.index:
                self._state.residency.grow(sequence)
        return True

    def add(self, sequence: Sequence, end: int, step: StepBuilder) -> int:
        """Put the rest of a sequence up to `end` into the step; return how many tokens it is."""
        start = sequence.num_computed_tokens
        store_from = max(start, sequence.num_stored_tokens)
        self._state.counts.computed_tokens += end - start
        ever = sequence.num_tokens_ever_computed
        self._state.counts.recomputed_tokens += max(0, min(end, ever) - start)
        sequence.num_tokens_ever_computed = max(ever, end)
        self._store(sequence, store_from, end)
        step.add(sequence, start, store_from, sequence.score_from)
        self._states.advance(np.array([sequence.place]), step)
        self._states.publish(sequence)
        self._note_scored(sequence, end)
        return end - start

    def _note_scored(self, sequence: Sequence, end: int) -> None:
        """Book as scored what a chunk up to `end` is followed by: once, whatever is replayed."""
        if sequence.score_from != NO_SCORES:
            is_last = end == sequence.num_tokens
            sequence.score_from = NO_SCORES if is_last else max(sequence.score_from, end)

    def _store(self, sequence: Sequence, store_from: int, end: int) -> None:
        """Book a chunk as done: its keys and values will be in the cache after this step.

        Full prompt blocks are published at once, so that rows admitted in this very step share
        them: within each layer all keys are written before any are read. Blocks with generated
        tokens are never published, because prompts always take the prefill path.
        """
        size = self._pool.block_size
        written = range(store_from // size, self._pool.num_blocks_for(end))
        num_full = min(end // size, len(sequence.block_keys))
        for group in self._state.groups:
            tables, place = group.tables, sequence.place
            for index in written if store_from < end else ():
                block_id = tables.block(place, index)
                group.pool.record_fill(block_id, min(size, end - index * size))
                group.written.note(block_id, max(store_from - index * size, 0))
            first = max(sequence.num_published_blocks, int(tables.firsts[place]))
            for index in range(first, num_full):
                group.pool.publish(tables.block(place, index), sequence.block_keys[index])
        sequence.num_computed_tokens = end
        sequence.num_stored_tokens = max(sequence.num_stored_tokens, end)
        sequence.num_published_blocks = max(sequence.num_published_blocks, num_full)


class _NewBlocks(NamedTuple):
    """Blocks of a group that sequences need for the token that they decode.

    is_needed, is_shared: [num_sequences] bool; of a shared block they need a copy. num_fit: number
    of leading sequences with enough free blocks.
    """

    group: KVGroup
    is_needed: Bools
    is_shared: Bools
    num_fit: int

    @classmethod
    def of(cls, group: KVGroup, places: Int64s, starts: Int64s) -> "_NewBlocks":
        """Look at the sequences at these places, and where each of their tokens begins."""
        tables, pool = group.tables, group.pool
        index = starts // pool.block_size
        is_missing = index >= tables.ends[places]
        is_shared = ~is_missing
        held = tables.ids[places[is_shared], index[is_shared]]
        is_shared[is_shared] = pool.ref_counts_of(held) > 1
        needs = is_missing | is_shared
        num_fit = int(np.searchsorted(np.cumsum(needs), pool.num_free, side="right"))
        return cls(group, needs, is_shared, num_fit)
