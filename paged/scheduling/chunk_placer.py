"""ChunkPlacer: finds room for what a step computes, and books it as done."""

from collections.abc import Sequence as Seq

import numpy as np

from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
from pagedrun.paged.scheduling.books import Books
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import NO_SCORES, Int64s
from pagedrun.paged.scheduling.step_builder import StepBuilder


class ChunkPlacer:
    """Places chunks one by one, or those of all sequences that decode at once."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._pool = books.pool
        self._table = books.table
        self._tables = books.table.kv_groups[0]

    def decode(self, running: Seq[Sequence], places: Int64s, budget: int, step: StepBuilder) -> int:
        """Place the first sequences that run, as long as they decode and memory and budget last.

        Each computes its newest token; the beams of a request are placed all, or none. places: of
        those that run. Returns how many they are; the books are what they would be had they been
        placed one by one.
        """
        table, pool = self._table, self._pool
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
        index = starts // pool.block_size
        is_missing = index >= self._tables.ends[places]
        is_shared = ~is_missing
        held = self._tables.ids[places[is_shared], index[is_shared]]
        is_shared[is_shared] = pool.ref_counts_of(held) > 1
        needs = is_missing | is_shared
        num_fit = int(np.searchsorted(np.cumsum(needs), pool.num_free, side="right"))
        num_fit = self._without_part(every, num_fit)
        places, starts, index = places[:num_fit], starts[:num_fit], index[:num_fit]
        positions = np.flatnonzero(needs[:num_fit])
        if is_shared[:num_fit].any():
            for position in positions.tolist():
                has_room = self.reserve(running[position], int(starts[position]) + 1, step)
                assert has_room, "fewer blocks are free than were counted"
        elif len(positions):
            self._append_blocks([running[position] for position in positions.tolist()])
        offsets = starts - index * pool.block_size
        blocks = self._tables.ids[places, index]
        pool.record_fills(blocks, offsets + 1)
        self._books.written.note(blocks, offsets)
        ends = starts + 1
        ever = table.num_tokens_ever_computed[places]
        self._books.counts.computed_tokens += len(places)
        self._books.counts.recomputed_tokens += int((ever > starts).sum())
        table.num_tokens_ever_computed[places] = np.maximum(ever, ends)
        table.num_computed_tokens[places] = ends
        table.num_stored_tokens[places] = ends
        step.decode(places)
        return len(places)

    def _without_part(self, places: Int64s, count: int) -> int:
        """Return how many of the first `count` sequences are left without beams of whose group
        others come behind them."""
        table = self._table
        if not 0 < count < len(places) or not table.num_beams[places[count]]:
            return count
        is_other = table.row[places[:count]] != table.row[places[count]]
        return int(np.flatnonzero(is_other)[-1]) + 1 if is_other.any() else 0

    def _append_blocks(self, sequences: Seq[Sequence]) -> None:
        """Give each of them a block; so many are free."""
        new = self._pool.allocate(len(sequences))
        assert new is not None, "fewer blocks are free than were counted"
        for sequence, block_id in zip(sequences, new, strict=True):
            self._tables.append_one(sequence.place, block_id)
            self._books.residency.append(sequence, block_id)

    def reserve(self, sequence: Sequence, end: int, step: StepBuilder) -> bool:
        """Make room for tokens up to `end`: own the block being written, allocate those missing."""
        num_blocks, num_stored = sequence.num_blocks, sequence.num_stored_tokens
        index = num_stored // self._pool.block_size
        if index < num_blocks and num_stored < end:
            shared = sequence.block(index)
            if self._pool.ref_count(shared) > 1:
                own = self._pool.fork_for_write(shared)
                if own is None:
                    return False
                self._tables.replace(sequence.place, index, own)
                self._books.residency.replace(sequence, index)
                step.transfers.append(BlockTransfer(TransferKind.COPY, shared, own))
        missing = self._pool.num_blocks_for(end) - num_blocks
        if missing > 0:
            new = self._pool.allocate(missing)
            if new is None:
                return False
            self._tables.append(sequence.place, new)
            self._books.residency.grow(sequence)
        return True

    def add(self, sequence: Sequence, end: int, step: StepBuilder) -> int:
        """Put the rest of a sequence up to `end` into the step; return how many tokens it is."""
        start = sequence.num_computed_tokens
        store_from = max(start, sequence.num_stored_tokens)
        self._books.counts.computed_tokens += end - start
        ever = sequence.num_tokens_ever_computed
        self._books.counts.recomputed_tokens += max(0, min(end, ever) - start)
        sequence.num_tokens_ever_computed = max(ever, end)
        self._store(sequence, store_from, end)
        step.add(sequence, start, store_from, sequence.score_from)
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
        for index in written if store_from < end else ():
            block_id = sequence.block(index)
            self._pool.record_fill(block_id, min(size, end - index * size))
            self._books.written.note(block_id, max(store_from - index * size, 0))
        sequence.num_computed_tokens = end
        sequence.num_stored_tokens = max(sequence.num_stored_tokens, end)
        num_full = min(end // size, len(sequence.block_keys))
        for index in range(sequence.num_published_blocks, num_full):
            self._pool.publish(sequence.block(index), sequence.block_keys[index])
        sequence.num_published_blocks = max(sequence.num_published_blocks, num_full)
