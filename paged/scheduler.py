"""Scheduler: which sequences run in the next step, and who gives way when memory is short.

waiting → running → finished, and back to waiting by preemption. Sequences run in the order in
which they were added; the youngest gives way first. The oldest can therefore always go on, and
since a request that does not fit into the empty pool is never added, every run ends.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pagedrun.paged.block_pool import BlockPool
from pagedrun.paged.scheduled_batch import (
    BlockTransfer,
    ScheduledBatch,
    ScheduledChunk,
    TransferKind,
)
from pagedrun.paged.sequence import Sequence
from pagedrun.paged.swap_space import SwapSpace


class PreemptionMode(StrEnum):
    """How a preempted sequence gets its keys and values back."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much one step may hold: sequences, and tokens to compute."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the run began."""

    prompt_tokens: int = 0  # of admitted sequences, whether computed or cached
    cached_tokens: int = 0  # of these, taken from the cache
    computed_tokens: int = 0  # every token of every chunk
    recomputed_tokens: int = 0  # of these, computed before and lost to a preemption
    forks: int = 0
    preemptions: dict[PreemptionMode, int] = field(
        default_factory=lambda: dict.fromkeys(PreemptionMode, 0)
    )


class Scheduler:
    """Decides each step from the pool's books alone; touches no tensor."""

    def __init__(
        self,
        pool: BlockPool,
        swap_space: SwapSpace,
        limits: SchedulerLimits,
        preemption_mode: PreemptionMode = PreemptionMode.SWAP,
    ) -> None:
        self.pool = pool
        self.swap_space = swap_space
        self.limits = limits
        self.preemption_mode = preemption_mode
        self.counts = SchedulerCounts()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.waiting or self.running)

    def fits(self, sequence: Sequence) -> bool:
        """Return whether the sequence, grown to its full length, fits into the empty pool."""
        return self.pool.num_blocks_for(sequence.max_num_tokens) <= self.pool.num_blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `ValueError` if it could never finish: see `fits`."""
        if not self.fits(sequence):
            raise ValueError("the sequence is longer than the pool")
        self.waiting.append(sequence)

    def schedule(self) -> ScheduledBatch:
        """Choose the next step: running sequences first, then new ones while memory lasts.

        Prompts longer than what is left of the step's tokens are cut into chunks; prefill chunks
        and decode tokens share a step.
        """
        batch = ScheduledBatch()
        budget = self.limits.max_num_batched_tokens
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            end = min(sequence.num_tokens, sequence.num_computed_tokens + budget)
            while not self._reserve(sequence, end, batch):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim, batch)
                if victim is sequence:
                    break
            else:
                budget -= self._add_chunk(sequence, end, batch)
                position += 1
        while self.waiting and not preempted and budget > 0:
            if len(self.running) >= self.limits.max_num_seqs:
                break
            if not self._admit(self.waiting[0], batch):
                break
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            end = min(sequence.num_tokens, sequence.num_computed_tokens + budget)
            budget -= self._add_chunk(sequence, end, batch)
        return batch

    def update(self, batch: ScheduledBatch, sampled: Iterable[list[int]]) -> list[Sequence]:
        """Append the sampled tokens and return the sequences that grew.

        `sampled` gives, for each chunk of the batch that samples, one token for each of its
        sequence's pending samples. Where a prompt was computed for several samples, the siblings
        are forked here: they share every block, and the first to write to one copies it.
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

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out of the run, whatever its state, and give its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._drop_blocks(sequence)

    def check(self) -> None:
        """Prove that block tables, pool and swap space agree. For tests, after every step."""
        for sequence in self.waiting:
            assert not sequence.block_table, "a waiting sequence holds blocks"
        self.pool.check(sequence.block_table for sequence in self.running)
        swapped = [block for sequence in self.waiting for block in sequence.host_blocks.values()]
        assert len(swapped) == len(set(swapped)), "a host block is used twice"
        assert len(swapped) + self.swap_space.num_free == self.swap_space.num_blocks, "swap space"

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
                batch.transfers.append(BlockTransfer(TransferKind.COPY, shared, own))
        missing = self.pool.num_blocks_for(end) - len(table)
        if missing > 0:
            new = self.pool.allocate(missing)
            if new is None:
                return False
            table += new
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
            self.pool.record_fill(sequence.block_table[index], min(size, chunk.end - index * size))
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
            self.running.append(child)
        for child in children[room:]:
            _forget_blocks(child)
            child.num_tokens_ever_computed = 0  # what it computes again, no preemption took
        self.waiting.extendleft(reversed(children[room:]))

    # ── Admission ───────────────────────────────────────────────────────────────────────────────

    def _admit(self, sequence: Sequence, batch: ScheduledBatch) -> bool:
        """Give a waiting sequence all blocks of its known tokens, or return False and give none.

        Cached blocks are shared; the rest come off the free list. One block for each running
        sequence stays free, so that admitting one does not preempt another at once.
        """
        hits = self.pool.match(sequence.block_keys)
        if any(index not in sequence.host_blocks for index in self._to_restore(sequence, hits)):
            # A shared block that this sequence relied on was evicted while it was swapped out.
            self._drop_host_blocks(sequence)
        num_new = self.pool.num_blocks_for(sequence.num_tokens) - len(hits)
        reserve = len(self.running)
        if num_new + self.pool.num_free_among(hits) + reserve > self.pool.num_free:
            return False
        restore = self._to_restore(sequence, hits)
        self.pool.share(hits)
        sequence.block_table = hits + (self.pool.allocate(num_new) or [])
        for index in restore:
            source, target = sequence.host_blocks[index], sequence.block_table[index]
            batch.transfers.append(BlockTransfer(TransferKind.SWAP_IN, source, target))
        self._start_from(sequence, len(hits))
        return True

    def _to_restore(self, sequence: Sequence, hits: list[int]) -> range:
        """Return the table indices that must come from the host for a swapped-out sequence."""
        if not sequence.host_blocks:
            return range(0)
        return range(len(hits), self.pool.num_blocks_for(sequence.num_stored_tokens))

    def _start_from(self, sequence: Sequence, num_hits: int) -> None:
        """Set where an admitted sequence goes on, and count what the cache gave it."""
        size = self.pool.block_size
        num_keys = len(sequence.block_keys)
        if not sequence.num_preemptions and not sequence.is_forked:
            sequence.num_cached_tokens = min(num_hits * size, sequence.num_prompt_tokens - 1)
            self.counts.prompt_tokens += sequence.num_prompt_tokens
            self.counts.cached_tokens += sequence.num_cached_tokens
            self.pool.counts.hits += num_hits
            self.pool.counts.misses += num_keys - num_hits
        stored = max(num_hits * size, sequence.num_stored_tokens if sequence.host_blocks else 0)
        sequence.num_stored_tokens = stored
        # At least one token is computed, since only a computed token has logits.
        sequence.num_computed_tokens = min(stored, sequence.num_tokens - 1)
        for index in range(num_hits, self.pool.num_blocks_for(stored)):
            self.pool.record_fill(sequence.block_table[index], min(size, stored - index * size))
        sequence.num_hit_blocks = sequence.num_published_blocks = num_hits
        for index in range(num_hits, min(stored // size, num_keys)):
            self.pool.publish(sequence.block_table[index], sequence.block_keys[index])
            sequence.num_published_blocks = index + 1
        self._drop_host_blocks(sequence, keep_progress=True)

    # ── Preemption ──────────────────────────────────────────────────────────────────────────────

    def _preempt(self, sequence: Sequence, batch: ScheduledBatch) -> None:
        """Take a sequence's blocks; its private ones are saved to the host if it has room."""
        mode = self.preemption_mode
        if mode is PreemptionMode.SWAP and not self._swap_out(sequence, batch):
            mode = PreemptionMode.RECOMPUTE
        self.counts.preemptions[mode] += 1
        sequence.num_preemptions += 1
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        if mode is PreemptionMode.RECOMPUTE:
            _forget_blocks(sequence)
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

    def _outlives(self, block_id: int) -> bool:
        return self.pool.is_published(block_id) and self.pool.ref_count(block_id) > 1

    def _drop_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        self._drop_host_blocks(sequence)

    def _drop_host_blocks(self, sequence: Sequence, *, keep_progress: bool = False) -> None:
        self.swap_space.give_back(list(sequence.host_blocks.values()))
        sequence.host_blocks = {}
        if not keep_progress:
            _forget_blocks(sequence)


def _forget_blocks(sequence: Sequence) -> None:
    """Set a sequence back to the state of one whose keys and values are nowhere."""
    sequence.block_table = []
    sequence.num_computed_tokens = 0
    sequence.num_stored_tokens = 0
    sequence.num_hit_blocks = 0
    sequence.num_published_blocks = 0
