"""Admission: lets waiting sequences in, with what the cache, the store and others have for them."""

import numpy as np

from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
from pagedrun.paged.scheduling.books import Books
from pagedrun.paged.scheduling.groups.kv_group import KVGroup
from pagedrun.paged.scheduling.groups.window_entry import WindowEntry, first_computed, num_usable
from pagedrun.paged.scheduling.output_length_predictor import OutputLengthPredictor
from pagedrun.paged.scheduling.prefix_donor import find_donor
from pagedrun.paged.scheduling.prefix_source import PrefixSource, load_prefix, load_state
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_builder import StepBuilder


class Admission:
    """Decides who is let in, and gives it its blocks."""

    def __init__(
        self, books: Books, predictor: OutputLengthPredictor, stored: PrefixSource | None
    ) -> None:
        self._books = books
        self._pool = books.pool
        self._predictor = predictor
        self._stored = stored
        self._states = books.states

    def admit(
        self,
        sequence: Sequence,
        running: list[Sequence],
        places: Int64s,
        budget: int,
        step: StepBuilder,
    ) -> bool:
        """Give a waiting sequence all blocks of its known tokens, or return False and give none.

        Cached blocks are shared; the rest come off the free list. Beside others it is let in only
        if the pool is expected to hold all of them to their ends. places: of those that run. In
        groups with a window it gets what a chunk of up to `budget` tokens takes, and where layers
        are recurrent a state.
        """
        hits = self._hits(sequence)
        if any(index not in sequence.host_blocks for index in self._to_restore(sequence, hits)):
            # A shared block that this sequence relied on was evicted while it was swapped out.
            self._books.drop_host_blocks(sequence)
            hits = self._hits(sequence)
        entries = [
            WindowEntry.of(group, sequence, len(hits), budget) for group in self._books.further
        ]
        if not all(each.is_there for each in entries):
            return False
        num_new = self._pool.num_blocks_for(sequence.num_tokens) - len(hits)
        num_taken = num_new + self._pool.num_free_among(hits)
        if num_taken > self._pool.num_free:
            return False
        if running:
            members = np.append(places, sequence.place)
            if not self._predictor.allows(self._pool, self._books.table, members, num_taken):
                return False
        state = self._states.entry(sequence, len(hits) * self._pool.block_size)
        if state is None:
            return False
        restore = self._to_restore(sequence, hits)
        is_new = not sequence.num_preemptions and not sequence.is_forked
        self._pool.share(hits)
        if is_new and sequence.is_first:
            self._pool.pin_path(sequence.block_keys[: sequence.num_keep_blocks])
        for each in entries:
            each.take(sequence, step)
            if is_new and sequence.is_first:
                each.group.pin_branches(sequence.block_keys, sequence.branch_point)
        self._states.take(sequence, state, step)
        if is_new and sequence.is_first:
            self._states.pin_points(sequence)
        self._states.reserve(sequence.place)
        self._books.unpin(sequence)
        sequence.block_table = hits + (self._pool.allocate(num_new) or [])
        for index in restore:
            source, target = sequence.host_blocks[index], sequence.block(index)
            step.transfers.append(BlockTransfer(TransferKind.SWAP_IN, source, target))
        num_copied, limit = 0, state.num_tokens
        if is_new and self._states.has_slots:
            limit = self._load_state(sequence, len(hits), limit, step)
            num_copied = max(limit - len(hits) * self._pool.block_size, 0)
        elif is_new:
            num_copied = self._copy_partial(sequence, running, hits, step)
        self._books.residency.begin(sequence, len(hits) + num_copied // self._pool.block_size)
        self._start_from(sequence, len(hits), num_copied, limit)
        return True

    def _copy_partial(
        self, sequence: Sequence, running: list[Sequence], hits: list[int], step: StepBuilder
    ) -> int:
        """Take what is missing from the store, or from a running sequence's block; say how much."""
        if not self._books.prefix_caching:
            return 0
        prompt = sequence.request.prompt_token_ids
        donor = find_donor(running, prompt, hits, self._pool.block_size, self._books.written)
        groups = self._books.groups
        loaded = load_prefix(self._stored, groups, sequence, len(hits), donor, step)
        if loaded or donor is None:
            return loaded
        index, place = len(hits), donor.place
        for group in self._books.groups:
            if not group.tables.has(place, index) or not group.tables.has(sequence.place, index):
                return 0
        for group in self._books.groups:
            source, target = (group.tables.block(at, index) for at in (place, sequence.place))
            step.transfers.append(BlockTransfer(TransferKind.COPY, source, target, group.index))
        return donor.num_tokens

    def _load_state(
        self, sequence: Sequence, num_hits: int, num_found: int, step: StepBuilder
    ) -> int:
        """Begin with a state of the store if that is further on; say behind how many tokens."""
        groups = self._books.groups
        return load_state(self._stored, groups, self._states, sequence, num_hits, num_found, step)

    def _hits(self, sequence: Sequence) -> list[int]:
        """Return the published blocks that a sequence can begin with, in all groups."""
        hits = self._pool.match(sequence.block_keys)
        further = self._books.further
        if further and sequence.host_blocks:  # more is not on the host for groups with a window
            return hits[: sequence.num_stored_tokens // self._pool.block_size]
        return hits[: num_usable(further, sequence, len(hits))]

    def _to_restore(self, sequence: Sequence, hits: list[int]) -> range:
        """Return the table indices that must come from the host for a swapped-out sequence."""
        if not sequence.host_blocks:
            return range(0)
        return range(len(hits), self._pool.num_blocks_for(sequence.num_stored_tokens))

    def _start_from(self, sequence: Sequence, num_hits: int, num_copied: int, limit: int) -> None:
        """Set where an admitted sequence goes on, and count what the cache gave it.

        limit: the tokens whose states there are, if that matters.
        """
        size = self._pool.block_size
        found = num_hits * size + num_copied
        is_new = not sequence.num_preemptions and not sequence.is_forked
        if is_new and sequence.is_first:
            num_cached = min(found, sequence.num_prompt_tokens - 1, sequence.score_from, limit)
            sequence.num_cached_tokens = num_cached
            self._books.counts.prompt_tokens += sequence.num_prompt_tokens
            self._books.counts.cached_tokens += num_cached
            if num_copied <= size:  # more than a block comes from the store
                self._books.counts.partial_hit_tokens += max(num_cached - num_hits * size, 0)
            num_given = num_hits + num_copied // size
            self._pool.counts.hits += num_given
            if self._books.prefix_caching:
                self._pool.counts.misses += sequence.num_prompt_tokens // size - num_given
        stored = max(found, sequence.num_stored_tokens if sequence.host_blocks else 0)
        sequence.num_stored_tokens = stored
        sequence.num_computed_tokens = min(first_computed(sequence, stored), limit)
        for index in range(num_hits, self._pool.num_blocks_for(stored)):
            self._pool.record_fill(sequence.block(index), min(size, stored - index * size))
        sequence.num_hit_blocks = sequence.num_published_blocks = num_hits
        for index in range(num_hits, min(stored // size, len(sequence.block_keys))):
            self._pool.publish(sequence.block(index), sequence.block_keys[index])
            sequence.num_published_blocks = index + 1
        for group in self._books.further:
            self._book_stored(group, sequence, num_hits, stored)
        self._books.drop_host_blocks(sequence, keep_progress=True)

    def _book_stored(self, group: KVGroup, sequence: Sequence, begin: int, stored: int) -> None:
        """Book what an admitted sequence was given from index `begin` on in a group."""
        size, place = group.pool.block_size, sequence.place
        begin = max(begin, int(group.tables.firsts[place]))
        for index in range(begin, group.pool.num_blocks_for(stored)):
            block_id = group.tables.block(place, index)
            group.pool.record_fill(block_id, min(size, stored - index * size))
            if (index + 1) * size <= stored and index < len(sequence.block_keys):
                group.pool.publish(block_id, sequence.block_keys[index])
