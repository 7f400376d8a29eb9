"""Scheduler: which sequences run in the next step, and who gives way when memory is short.

planned → waiting → running → ending → finished, and back to waiting by preemption. Sequences run in
the order of the plan, which makes them only when there is room; the youngest gives way first. The
oldest can therefore always go on, and since nothing is planned that does not fit into the empty
pool, every run ends.

The plan's order is a walk of a tree: what a later row will find in the pool is what the next row
has in common with the one admitted last, and the pool keeps exactly that (`BlockPool.want_path`),
with what waiting sequences come back for (`BlockPool.want`).
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.swap_space import SwapSpace
from pagedrun.paged.report.record.scheduler_counts import SchedulerCounts
from pagedrun.paged.scheduling.foresight import Foresight
from pagedrun.paged.scheduling.prefix_donor import find_donor
from pagedrun.paged.scheduling.prefix_source import PrefixSource, load_prefix
from pagedrun.paged.scheduling.scheduled_batch import (
    BlockTransfer,
    ScheduledBatch,
    ScheduledChunk,
    TransferKind,
)
from pagedrun.paged.scheduling.scheduler_limits import SchedulerLimits
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.stays import Stays
from pagedrun.paged.values.block_key import BlockKey
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.preemption_mode import PreemptionMode


class Scheduler:
    """Decides each step from the pool's books alone; touches no tensor."""

    def __init__(
        self,
        pool: BlockPool,
        swap_space: SwapSpace,
        limits: SchedulerLimits,
        preemption_mode: PreemptionMode = PreemptionMode.SWAP,
        *,
        planned: Iterable[PlannedRequest] = (),
        prefix_caching: bool = True,
        foresight: Foresight | None = None,
        stored: PrefixSource | None = None,
    ) -> None:
        """Run what is `planned`, in its order; it is asked for the next one when there is room.

        `foresight` decides who is let in beside others. Without `prefix_caching` no sequence is
        given what another one computed. `stored` has what earlier runs computed.
        """
        self.pool = pool
        self.swap_space = swap_space
        self.limits = limits
        self.preemption_mode = preemption_mode
        self.counts = SchedulerCounts()
        self.waiting: deque[Sequence] = deque()  # sent back, and at most one new one
        self.running: list[Sequence] = []
        self.ending: list[Sequence] = []  # scheduled for the last time, not yet finished
        self.foresight = foresight or Foresight()
        self.stays = Stays()
        self._planned: Iterator[PlannedRequest] = iter(planned)
        self._prefix_caching = prefix_caching
        self._stored = stored
        self._written: dict[int, int] = {}  # block → first offset that this step writes

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.running) or self._next() is not None

    def schedule(self) -> ScheduledBatch:
        """Choose the next step: running sequences first, then new ones while memory lasts.

        Prompts longer than what is left of the step's tokens are cut into chunks; prefill chunks
        and decode tokens share a step. Raises `ValueError` if a planned sequence is longer than
        the pool.
        """
        batch = ScheduledBatch()
        self._written.clear()
        budget = self.limits.max_num_batched_tokens
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            end = min(sequence.num_tokens, sequence.num_computed_tokens + budget)
            while not self._reserve(sequence, end, batch):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim, sequence, end, batch)
                if victim is sequence:
                    break
            else:
                budget -= self._add_chunk(sequence, end, batch)
                position += 1
        short = preempted
        while not short and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            candidate = self._next()
            if candidate is None:
                break
            if short := not self._admit(candidate, batch):
                break
            self.running.append(self.waiting.popleft())
            end = min(candidate.num_tokens, candidate.num_computed_tokens + budget)
            budget -= self._add_chunk(candidate, end, batch)
        if short:
            self.counts.steps_short_of_memory += 1
            self.counts.blocks_held_when_short += self.pool.num_held
        return batch

    def update(self, batch: ScheduledBatch, sampled: Iterable[list[int]]) -> list[Sequence]:
        """Append the sampled tokens and return the sequences that grew.

        `sampled` gives, for each chunk of the batch that samples, one token (which may be
        `UNKNOWN_TOKEN`) for each of its sequence's pending samples. Where a prompt was computed for
        several samples, the siblings are forked here: they share every block, and the first to
        write to one copies it.
        """
        grown: list[Sequence] = []
        chunks = (chunk for chunk in batch.chunks if chunk.samples)
        for chunk, tokens in zip(chunks, sampled, strict=True):
            parent = chunk.sequence
            siblings = [parent, *(parent.fork(index) for index in parent.pending_samples[1:])]
            parent.pending_samples = parent.pending_samples[:1]
            for sequence, token in zip(siblings, tokens, strict=True):
                sequence.output_token_ids.append(token)
            self._adopt(siblings[1:])
            grown += siblings
        return grown

    def retire(self, sequence: Sequence) -> None:
        """Schedule a sequence no more; it keeps its blocks until `finish`.

        That is the state of one that has all its tokens while the last are still unknown.
        """
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
            self._want_no_more(sequence)
        self.ending.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out of the run, whatever its state, and give its blocks back."""
        if sequence not in self.waiting:
            self.foresight.learn(sequence)
        if sequence not in self.ending:
            self.retire(sequence)
        self.ending.remove(sequence)
        self.pool.release(sequence.block_table)
        self.stays.end(sequence)
        self._drop_host_blocks(sequence)

    def check(self) -> None:
        """Prove that block tables, pool and swap space agree. For tests, after every step."""
        for sequence in self.waiting:
            assert not sequence.block_table, "a waiting sequence holds blocks"
        self.pool.check(s.block_table for s in (*self.running, *self.ending))
        swapped = [block for sequence in self.waiting for block in sequence.host_blocks.values()]
        assert len(swapped) == len(set(swapped)), "a host block is used twice"
        assert len(swapped) + self.swap_space.num_free == self.swap_space.num_blocks, "swap space"
        wanted = Counter(key.digest for s in self.waiting for key in s.wanted_keys)
        assert self.pool.num_waiting_for() == wanted, "what waiting sequences want"
        assert not any(sequence.wanted_keys for sequence in self.running), "a want not taken back"

    def _next(self) -> Sequence | None:
        """Return the first sequence that waits, a new one if none does, `None` at the end."""
        if not self.waiting:
            planned = next(self._planned, None)
            if planned is None:
                self.pool.want_path(())
                return None
            sequence = Sequence.start(planned)
            if self.pool.num_blocks_for(sequence.max_num_tokens) > self.pool.num_blocks:
                raise ValueError("the sequence is longer than the pool")
            self.waiting.append(sequence)
        return self.waiting[0]

    # ── Running sequences ───────────────────────────────────────────────────────────────────────

    def _reserve(self, sequence: Sequence, end: int, batch: ScheduledBatch) -> bool:
        """Make room for tokens up to `end`: own the block being written, allocate those missing."""
        table = sequence.block_table
        index = sequence.num_stored_tokens // self.pool.block_size
        if index < len(table) and sequence.num_stored_tokens < end:
            shared = table[index]
            if self.pool.ref_count(shared) > 1:
                own = self.pool.fork_for_write(shared)
                if own is None:
                    return False
                table[index] = own
                self.stays.replace(sequence, index)
                batch.transfers.append(BlockTransfer(TransferKind.COPY, shared, own))
        missing = self.pool.num_blocks_for(end) - len(table)
        if missing > 0:
            new = self.pool.allocate(missing)
            if new is None:
                return False
            table += new
            self.stays.grow(sequence)
        return True

    def _add_chunk(self, sequence: Sequence, end: int, batch: ScheduledBatch) -> int:
        start = sequence.num_computed_tokens
        chunk = ScheduledChunk(
            sequence=sequence,
            start=start,
            end=end,
            store_from=max(start, sequence.num_stored_tokens),
            samples=end == sequence.num_tokens,
        )
        batch.chunks.append(chunk)
        self.counts.computed_tokens += chunk.num_tokens
        self.counts.recomputed_tokens += max(0, min(end, sequence.num_tokens_ever_computed) - start)
        sequence.num_tokens_ever_computed = max(sequence.num_tokens_ever_computed, end)
        self._store(sequence, chunk)
        return chunk.num_tokens

    def _store(self, sequence: Sequence, chunk: ScheduledChunk) -> None:
        """Book the chunk as done: its keys and values will be in the cache after this step.

        Full prompt blocks are published at once, so that rows admitted in this very step share
        them: within each layer all keys are written before any are read. Blocks with generated
        tokens are never published, because prompts always take the prefill path.
        """
        size = self.pool.block_size
        for index in range(chunk.store_from // size, self.pool.num_blocks_for(chunk.end)):
            block_id = sequence.block_table[index]
            self.pool.record_fill(block_id, min(size, chunk.end - index * size))
            self._written[block_id] = max(chunk.store_from - index * size, 0)
        sequence.num_computed_tokens = chunk.end
        sequence.num_stored_tokens = max(sequence.num_stored_tokens, chunk.end)
        num_full = min(chunk.end // size, len(sequence.block_keys))
        for index in range(sequence.num_published_blocks, num_full):
            self.pool.publish(sequence.block_table[index], sequence.block_keys[index])
        sequence.num_published_blocks = max(sequence.num_published_blocks, num_full)

    def _adopt(self, children: list[Sequence]) -> None:
        """Let forked siblings run; those for which the step is full wait without blocks."""
        self.counts.forks += len(children)
        room = max(self.limits.max_num_seqs - len(self.running), 0)
        for child in children[:room]:
            self.pool.share(child.block_table)
            self.stays.begin(child, len(child.block_table))
            self.running.append(child)
        for child in children[room:]:
            self._want_prompt(child)
            child.forget_blocks()
            child.num_tokens_ever_computed = 0  # what it computes again, no preemption took
        self.waiting.extendleft(reversed(children[room:]))

    # ── Admission ───────────────────────────────────────────────────────────────────────────────

    def _admit(self, sequence: Sequence, batch: ScheduledBatch) -> bool:
        """Give a waiting sequence all blocks of its known tokens, or return False and give none.

        Cached blocks are shared; the rest come off the free list. Beside others it is let in only
        if the pool is expected to hold all of them to their ends.
        """
        hits = self.pool.match(sequence.block_keys)
        if any(index not in sequence.host_blocks for index in self._to_restore(sequence, hits)):
            # A shared block that this sequence relied on was evicted while it was swapped out.
            self._drop_host_blocks(sequence)
        num_new = self.pool.num_blocks_for(sequence.num_tokens) - len(hits)
        num_taken = num_new + self.pool.num_free_among(hits)
        if num_taken > self.pool.num_free:
            return False
        if self.running and not self.foresight.allows(self.pool, self.running, sequence, num_taken):
            return False
        restore = self._to_restore(sequence, hits)
        is_new = not sequence.num_preemptions and not sequence.is_forked
        self.pool.share(hits)
        if is_new:
            self.pool.want_path(sequence.block_keys[: sequence.num_keep_blocks])
        self._want_no_more(sequence)
        sequence.block_table = hits + (self.pool.allocate(num_new) or [])
        for index in restore:
            source, target = sequence.host_blocks[index], sequence.block_table[index]
            batch.transfers.append(BlockTransfer(TransferKind.SWAP_IN, source, target))
        num_copied = self._copy_partial(sequence, hits, batch) if is_new else 0
        self.stays.begin(sequence, len(hits) + num_copied // self.pool.block_size)
        self._start_from(sequence, len(hits), num_copied)
        return True

    def _copy_partial(self, sequence: Sequence, hits: list[int], batch: ScheduledBatch) -> int:
        """Take what is missing from the store, or from a running sequence's block; say how much."""
        if not self._prefix_caching:
            return 0
        prompt = sequence.request.prompt_token_ids
        donor = find_donor(self.running, prompt, hits, self.pool.block_size, self._written)
        loaded = load_prefix(self._stored, sequence, len(hits), donor, batch)
        if loaded or donor is None:
            return loaded
        target = sequence.block_table[len(hits)]
        batch.transfers.append(BlockTransfer(TransferKind.COPY, donor.block_id, target))
        return donor.num_tokens

    def _to_restore(self, sequence: Sequence, hits: list[int]) -> range:
        """Return the table indices that must come from the host for a swapped-out sequence."""
        if not sequence.host_blocks:
            return range(0)
        return range(len(hits), self.pool.num_blocks_for(sequence.num_stored_tokens))

    def _start_from(self, sequence: Sequence, num_hits: int, num_copied: int) -> None:
        """Set where an admitted sequence goes on, and count what the cache gave it."""
        size = self.pool.block_size
        found = num_hits * size + num_copied
        if not sequence.num_preemptions and not sequence.is_forked:
            num_cached = min(found, sequence.num_prompt_tokens - 1)
            sequence.num_cached_tokens = num_cached
            self.counts.prompt_tokens += sequence.num_prompt_tokens
            self.counts.cached_tokens += num_cached
            if num_copied <= size:  # more than a block comes from the store
                self.counts.partial_hit_tokens += max(num_cached - num_hits * size, 0)
            num_given = num_hits + num_copied // size
            self.pool.counts.hits += num_given
            if self._prefix_caching:
                self.pool.counts.misses += sequence.num_prompt_tokens // size - num_given
        stored = max(found, sequence.num_stored_tokens if sequence.host_blocks else 0)
        sequence.num_stored_tokens = stored
        # At least one token is computed, since only a computed token has logits.
        sequence.num_computed_tokens = min(stored, sequence.num_tokens - 1)
        for index in range(num_hits, self.pool.num_blocks_for(stored)):
            self.pool.record_fill(sequence.block_table[index], min(size, stored - index * size))
        sequence.num_hit_blocks = sequence.num_published_blocks = num_hits
        for index in range(num_hits, min(stored // size, len(sequence.block_keys))):
            self.pool.publish(sequence.block_table[index], sequence.block_keys[index])
            sequence.num_published_blocks = index + 1
        self._drop_host_blocks(sequence, keep_progress=True)

    # ── Preemption ──────────────────────────────────────────────────────────────────────────────

    def _preempt(
        self, sequence: Sequence, needy: Sequence, end: int, batch: ScheduledBatch
    ) -> None:
        """Take a sequence's blocks; its private ones are saved to the host if it has room.

        `needy`, which may be the same, wants to store its tokens up to `end`.
        """
        num_free = self.pool.num_free
        self._want_prompt(sequence)
        mode = self.preemption_mode
        if mode is PreemptionMode.SWAP and not self._swap_out(sequence, batch):
            mode = PreemptionMode.RECOMPUTE
        self.counts.preemptions[mode] += 1
        sequence.num_preemptions += 1
        # No block is missing where it only needs a copy of a shared one.
        num_needed = max(self.pool.num_blocks_for(end) - len(needy.block_table), 1)
        self.stays.preempt(sequence, mode, needy, num_needed, num_free)
        self.stays.end(sequence)
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        if mode is PreemptionMode.RECOMPUTE:
            sequence.forget_blocks()
        self.waiting.appendleft(sequence)

    def _swap_out(self, sequence: Sequence, batch: ScheduledBatch) -> bool:
        """Save every stored block but those a published prefix will give back for nothing."""
        num_stored = self.pool.num_blocks_for(sequence.num_stored_tokens)
        first = 0
        while first < num_stored and self._outlives(sequence.block_table[first]):
            first += 1
        host_blocks = self.swap_space.take(num_stored - first)
        if not host_blocks:
            return False
        for index, target in zip(range(first, num_stored), host_blocks, strict=True):
            sequence.host_blocks[index] = target
            source = sequence.block_table[index]
            batch.transfers.append(BlockTransfer(TransferKind.SWAP_OUT, source, target))
        return True

    def _want_prompt(self, sequence: Sequence) -> None:
        """Keep the prompt blocks that a sequence leaves behind, as long as there is room."""
        if not self._prefix_caching:
            return
        size = self.pool.block_size
        num_full = min(sequence.num_stored_tokens, sequence.num_prompt_tokens) // size
        prompt = sequence.request.prompt_token_ids[: num_full * size]
        keys = BlockKey.chain(prompt, size, sequence.block_keys[:num_full])
        if num_full > len(sequence.block_keys):
            sequence.block_keys = keys
        sequence.wanted_keys = keys
        self.pool.want(keys)
        for block_id, key in zip(sequence.block_table, keys, strict=False):
            self.pool.publish(block_id, key)

    def _want_no_more(self, sequence: Sequence) -> None:
        self.pool.unwant(sequence.wanted_keys)
        sequence.wanted_keys = []

    def _outlives(self, block_id: int) -> bool:
        return self.pool.is_published(block_id) and self.pool.ref_count(block_id) > 1

    def _drop_host_blocks(self, sequence: Sequence, *, keep_progress: bool = False) -> None:
        self.swap_space.give_back(list(sequence.host_blocks.values()))
        sequence.host_blocks = {}
        if not keep_progress:
            sequence.forget_blocks()
