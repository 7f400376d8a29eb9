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

    def decode(
        self, running: Seq[Sequence], row_indices: Int64s, budget: int, step: StepBuilder
    ) -> int:
        """Place the newest tokens of the first running sequences; return their number.

        Stops at a sequence that does not decode, or when memory or budget is used up. The beams of
        a request are placed together or not at all. row_indices: of the running sequences. The
        result is the same as that of placing them one by one.
        """
        table = self._table
        every, row_indices = row_indices, row_indices[:budget]
        starts = table.num_computed_tokens[row_indices]
        decodes = (starts >= table.num_prompt_tokens[row_indices]) & (
            starts == table.num_tokens(row_indices) - 1
        )
        decodes &= table.num_stored_tokens[row_indices] == starts
        decodes &= table.num_beams[row_indices] <= 1  # beams are computed by their group
        if not decodes.all():
            row_indices = row_indices[: int(decodes.argmin())]
        row_indices = row_indices[: self._without_part(every, len(row_indices))]
        starts = starts[: len(row_indices)]
        needs = []
        num_fit = len(row_indices)
        for group in self._state.groups:
            group.free_all_behind(row_indices, starts)
            needs.append(_NewBlocks.of(group, row_indices, starts))
            num_fit = min(num_fit, needs[-1].num_fit)
        needs_slot = self._states.needs_slot(row_indices)
        num_fit = min(num_fit, self._states.num_fit(needs_slot))
        num_fit = self._without_part(every, num_fit)
        row_indices, starts = row_indices[:num_fit], starts[:num_fit]
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
            blocks = group.tables.ids[row_indices, index]
            group.pool.record_fills(blocks, offsets + 1)
            group.written.note(blocks, offsets)
        ends = starts + 1
        ever = table.num_tokens_ever_computed[row_indices]
        self._state.counts.computed_tokens += len(row_indices)
        self._state.counts.recomputed_tokens += int((ever > starts).sum())
        table.num_tokens_ever_computed[row_indices] = np.maximum(ever, ends)
        table.num_computed_tokens[row_indices] = ends
        table.num_stored_tokens[row_indices] = ends
        step.decode(row_indices)
        self._states.advance(row_indices, step)
        return len(row_indices)

    def _without_part(self, row_indices: Int64s, count: int) -> int:
        """Return the number of the first `count` sequences, without a group of beams that would be
        split there."""
        table = self._table
        if not 0 < count < len(row_indices) or not table.num_beams[row_indices[count]]:
            return count
        is_other = table.row[row_indices[:count]] != table.row[row_indices[count]]
        return int(np.flatnonzero(is_other)[-1]) + 1 if is_other.any() else 0

    def _append_blocks(self, group: KVGroup, sequences: Seq[Sequence]) -> None:
        """Append a block of a group to the table of each; enough blocks must be free."""
        new = group.pool.allocate(len(sequences))
        assert new is not None, "fewer blocks are free than were counted"
        for sequence, block_id in zip(sequences, new, strict=True):
            group.tables.append_one(sequence.row_index, block_id)
            if not group.index:
                self._state.residency.append(sequence, block_id)

    def num_tokens_held(self, sequence: Sequence) -> int:
        """Return the number of tokens for which a sequence has blocks in all groups."""
        ends = [int(group.tables.ends[sequence.row_index]) for group in self._state.groups]
        return min(ends) * self._pool.block_size

    def reserve(self, sequence: Sequence, end: int, step: StepBuilder) -> bool:
        """Make room for tokens up to `end`: copy a shared block to be written, allocate others.

        Blocks that lie before the window of the step's first token of the sequence are freed first.
        Returns False if memory is short.
        """
        has_blocks = all(self._reserve(group, sequence, end, step) for group in self._state.groups)
        is_idle = end == sequence.num_computed_tokens
        return has_blocks and (is_idle or self._states.reserve(sequence.row_index))

    def _reserve(self, group: KVGroup, sequence: Sequence, end: int, step: StepBuilder) -> bool:
        pool, tables, row_index = group.pool, group.tables, sequence.row_index
        group.free_behind(row_index, sequence.num_computed_tokens)
        num_stored = sequence.num_stored_tokens
        index = num_stored // pool.block_size
        if tables.has(row_index, index) and num_stored < end:
            shared = tables.block(row_index, index)
            if pool.ref_count(shared) > 1:
                own = pool.fork_for_write(shared)
                if own is None:
                    return False
                tables.replace(row_index, index, own)
                if not group.index:
                    self._state.residency.replace(sequence, index)
                step.transfers.append(BlockTransfer(TransferKind.COPY, shared, own, group.index))
        missing = pool.num_blocks_for(end) - int(tables.ends[row_index])
        if missing > 0:
            new = pool.allocate(missing)
            if new is None:
                return False
            tables.append(row_index, new)
            if not group.index:
                self._state.residency.grow(sequence)
        return True

    def add(self, sequence: Sequence, end: int, step: StepBuilder) -> int:
        """Add the tokens of a sequence up to `end` to the step; return their number."""
        start = sequence.num_computed_tokens
        store_from = max(start, sequence.num_stored_tokens)
        self._state.counts.computed_tokens += end - start
        ever = sequence.num_tokens_ever_computed
        self._state.counts.recomputed_tokens += max(0, min(end, ever) - start)
        sequence.num_tokens_ever_computed = max(ever, end)
        self._store(sequence, store_from, end)
        step.add(sequence, start, store_from, sequence.score_from)
        self._states.advance(np.array([sequence.row_index]), step)
        self._states.publish(sequence)
        self._note_scored(sequence, end)
        return end - start

    def draft(self, sequence: Sequence, tokens: Seq[int], step: StepBuilder) -> int:
        """Add drafts behind the newest token of a sequence, if the step computes that and no prompt
        of the sequence; return their number.

        They get blocks and slots that are free and in which nothing is cached, until `drop_drafts`.
        """
        row_index, end = sequence.row_index, sequence.num_computed_tokens
        start = step.chunk_start(row_index)
        if start is None or start < sequence.num_prompt_tokens or end != sequence.num_tokens:
            return 0
        spare = [group.num_spare(row_index, end) for group in self._state.groups]
        tokens = tokens[: min(*spare, self._states.num_spare(len(tokens)))]
        if not tokens:
            return 0
        for group in self._state.groups:
            group.extend(row_index, end + len(tokens))
        step.draft(row_index, tokens)
        self._states.draft(row_index, len(tokens), step)
        self._state.counts.computed_tokens += len(tokens)
        return len(tokens)

    def drop_drafts(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence's drafts that were not accepted."""
        for group in self._state.groups:
            group.cut(sequence.row_index, sequence.num_tokens)
        self._state.residency.grow(sequence)

    def accept(self, row_index: int, count: int) -> None:
        """Record the first drafts of a sequence, behind those recorded before, as stored."""
        table, size = self._table, self._pool.block_size
        start = int(table.num_computed_tokens[row_index])
        end = start + count
        for index in range(start // size, self._pool.num_blocks_for(end)) if count else ():
            for group in self._state.groups:
                block_id = group.tables.block(row_index, index)
                group.pool.record_fill(block_id, min(size, end - index * size))
        ever = int(table.num_tokens_ever_computed[row_index])
        table.num_computed_tokens[row_index] = table.num_stored_tokens[row_index] = end
        table.num_tokens_ever_computed[row_index] = max(ever, end)
        self._states.accept(row_index, count)

    def _note_scored(self, sequence: Sequence, end: int) -> None:
        """Record the tokens up to `end` as scored, so that a replay does not score them again."""
        if sequence.score_from != NO_SCORES:
            is_last = end == sequence.num_tokens
            sequence.score_from = NO_SCORES if is_last else max(sequence.score_from, end)

    def _store(self, sequence: Sequence, store_from: int, end: int) -> None:
        """Record a chunk as stored: its keys and values will be in the cache after this step.

        Full prompt blocks are published at once, so that rows admitted in this very step share
        them: within each layer all keys are written before any are read. Blocks with generated
        tokens are never published, because prompts always take the prefill path.
        """
        size = self._pool.block_size
        written = range(store_from // size, self._pool.num_blocks_for(end))
        num_full = min(end // size, len(sequence.block_keys))
        for group in self._state.groups:
            tables, row_index = group.tables, sequence.row_index
            for index in written if store_from < end else ():
                block_id = tables.block(row_index, index)
                group.pool.record_fill(block_id, min(size, end - index * size))
                group.written.note(block_id, max(store_from - index * size, 0))
            first = max(sequence.num_published_blocks, int(tables.firsts[row_index]))
            for index in range(first, num_full):
                group.pool.publish(tables.block(row_index, index), sequence.block_keys[index])
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
    def of(cls, group: KVGroup, row_indices: Int64s, starts: Int64s) -> "_NewBlocks":
        """Return the blocks that sequences need for tokens at positions `starts`."""
        tables, pool = group.tables, group.pool
        index = starts // pool.block_size
        is_missing = index >= tables.ends[row_indices]
        is_shared = ~is_missing
        held = tables.ids[row_indices[is_shared], index[is_shared]]
        is_shared[is_shared] = pool.ref_counts_of(held) > 1
        needs = is_missing | is_shared
        num_fit = int(np.searchsorted(np.cumsum(needs), pool.num_free, side="right"))
        return cls(group, needs, is_shared, num_fit)
