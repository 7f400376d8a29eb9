"""StateSlots: slots for the states of recurrent layers, of sequences and kept for later rows.

A state is what recurrent layers keep of all tokens so far. A sequence has one, in a slot of its
own; its next chunk reads it and writes the next one. Slots are the blocks of a pool: a slot
kept for other rows is published under the key of the last block before it, so states are kept
at block borders only. The plan says where rows start on the paths of others: a chunk of the
prompt ends there, and its state is pinned until the last of these rows is admitted.

A slot that one sequence alone holds is written in place. From any other, a kept one or that of
samples that have just forked, the next chunk reads, and it writes a new one; nothing is copied.

A draft writes a slot of its own, among those that nothing else needs in the step. The sequence goes
on from that of its last right draft, and the next step frees the others.
`NoStates` stands in for a model without recurrent layers.
"""

from collections import Counter
from collections.abc import Set
from typing import NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Bools, Int64s
from pagedrun.paged.cache.block_pool import BlockPool, BlockTransfer, SwapSpace, TransferKind
from pagedrun.paged.metrics.report_sections import StateFigures
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import NO_STATE, SequenceTable
from pagedrun.paged.scheduling.step_input import StepBuilder
from pagedrun.paged.values.planned_request import BlockKey


class StatePool(NamedTuple):
    """Memory of recurrent layers: slots, each with room for the state behind one token.

    With `whole_prompts` the states are those of a Transformers model, whose last bits depend on the
    split of a prompt: a chunk has all of it, even if the step then exceeds its token limit.
    """

    slots: BlockPool
    swap_space: SwapSpace
    whole_prompts: bool = False

    @classmethod
    def of(cls, num_slots: int, num_host_slots: int, *, whole_prompts: bool = False) -> "StatePool":
        """Return an empty pool."""
        return cls(BlockPool(num_slots, block_size=1), SwapSpace(num_host_slots), whole_prompts)


class StateEntry(NamedTuple):
    """Starting point of a sequence: at most `num_tokens` tokens, with the state of a slot.

    `slot` is `NO_STATE` where the state is on the host, is zeros, or is not needed.
    """

    slot: int
    num_tokens: int


class NoStates:
    """Null object of `StateSlots`, for a model without recurrent layers.

    num_kept: states kept for other sequences so far. num_found: sequences that started from one.
    """

    has_slots = False
    num_slots = 0
    num_kept = 0
    num_found = 0

    def end_step(self) -> None:
        """Free the slots that the scheduled step reads for the last time, and make those that it
        writes available."""

    def chunk_end(self, sequence: Sequence, end: int) -> int:
        """Return the end of a chunk up to `end`, for a state that is needed again."""
        return end

    def must_wait(self, sequence: Sequence, running: list[Sequence], row_indices: Int64s) -> bool:
        """Return whether the first state of a sequence is about to be written."""
        return False

    def entry(self, sequence: Sequence, num_stored: int) -> StateEntry | None:
        """Return the starting point of a sequence with `num_stored` tokens stored in blocks; None
        if too few slots are free."""
        return StateEntry(NO_STATE, sequence.num_tokens)

    def take(self, sequence: Sequence, entry: StateEntry, step: StepBuilder) -> None:
        """Give a sequence the state of its entry, and unpin the keys of its wait."""

    def can_load(self, row_index: int) -> bool:
        """Return whether there are slots for a loaded state and for the next one."""
        return False

    def load(self, sequence: Sequence, source: int, num_tokens: int, step: StepBuilder) -> None:
        """Replace the state of a sequence's entry by one that the step loads."""

    def needs_slot(self, row_indices: Int64s) -> Bools:
        """Return a mask of the sequences that need a new slot for their next chunk."""
        return np.zeros(len(row_indices), dtype=np.bool_)

    def num_fit(self, needs: Bools) -> int:
        """Return the number of first sequences for which enough slots are free."""
        return len(needs)

    def reserve(self, row_index: int) -> bool:
        """Reserve a slot for the next chunk to write; return False if none is free."""
        return True

    def advance(self, row_indices: Int64s, step: StepBuilder) -> None:
        """Record the slots of the chunks just added to the step, of these sequences."""

    def num_spare(self, count: int) -> int:
        """Return the number of drafts, at most `count`, whose states have room."""
        return count

    def draft(self, row_index: int, count: int, step: StepBuilder) -> None:
        """Record the slots of drafts just added to the step, behind the last chunk of a
        sequence."""

    def accept(self, row_index: int, count: int) -> None:
        """Continue a sequence from the state behind so many further drafts of it."""

    def drop_drafts(self) -> None:
        """Free the slots of drafts that were not accepted."""

    def publish(self, sequence: Sequence) -> None:
        """Publish the state behind a sequence's last chunk, if a later row needs it."""

    def pin_points(self, sequence: Sequence) -> None:
        """Pin the states from which later rows start on the path of the row admitted last."""

    def end_plan(self) -> None:
        """Unpin all states: no later row starts from one."""

    def share(self, row_index: int) -> None:
        """Add a reference to the slot of a sequence, whose entry is a copy."""

    def release(self, row_index: int) -> None:
        """Free the slots of a sequence."""

    def retire(self, row_index: int) -> None:
        """Free the slots and pins of a sequence whose last step has been scheduled."""

    def swap_out(self, row_index: int, step: StepBuilder) -> bool:
        """Save a sequence's state to the host; return False if that has no room."""
        return True

    def drop_host_slot(self, row_index: int) -> None:
        """Free the host slot of a sequence."""

    def pin(self, sequence: Sequence) -> None:
        """Pin the state from which a waiting sequence will resume."""

    def unpin(self, row_index: int) -> None:
        """Unpin the keys of a sequence."""

    def retract(self, keys: list[BlockKey]) -> None:
        """Remove the states behind these blocks from the cache."""

    @property
    def peak_slots(self) -> int:
        """Maximum number of held slots."""
        return 0

    def figures(self, bytes_per_slot: int) -> StateFigures:
        """Return the report of slots of `bytes_per_slot` bytes."""
        return {
            "num_slots": self.num_slots,
            "bytes_per_slot": bytes_per_slot,
            "pool_bytes": self.num_slots * bytes_per_slot,
            "peak_slots": self.peak_slots,
            "peak_bytes": self.peak_slots * bytes_per_slot,
            "kept_states": self.num_kept,
            "found_states": self.num_found,
        }

    def check(self, held: Set[int], waiting: Set[int]) -> None:
        """Assert that sequences and slots agree. For tests."""


class StateSlots(NoStates):
    """Slots of all sequences; kept states are at least `block_size` tokens apart."""

    has_slots = True

    def __init__(
        self, memory: StatePool, table: SequenceTable, block_size: int, group: int
    ) -> None:
        """group: index of the slots in transfers, after the groups of blocks."""
        assert memory.slots.num_blocks > 1, "one to read and one to write"
        self.pool = memory.slots
        self.swap_space = memory.swap_space
        self._whole_prompts = memory.whole_prompts
        self.num_slots = self.pool.num_blocks
        self._table = table
        self._block_size = block_size
        self._group = group
        self._next: dict[int, int] = {}  # row index → the slot that its next chunk writes
        self._read: list[int] = []  # for the last time, by the step being scheduled
        self._new: set[int] = set()  # kept ones which that step writes
        self._drafted: dict[int, list[int]] = {}  # row index → slots behind drafts not accepted
        self._on_host: dict[int, int] = {}  # row index → host slot
        self._pinned: dict[int, list[BlockKey]] = {}

    def end_step(self) -> None:
        """Free the slots that the scheduled step reads for the last time, and make those that it
        writes available."""
        self.pool.release(self._read)
        self._read.clear()
        self._new.clear()

    def chunk_end(self, sequence: Sequence, end: int) -> int:
        """Return the end of a chunk up to `end`, for a state that is needed again, or for a prompt
        that must not be split."""
        start = sequence.num_computed_tokens
        if start >= sequence.num_prompt_tokens:
            return end
        if self._whole_prompts:
            return max(end, sequence.num_prompt_tokens)
        point = sequence.state_points
        while point is not None:
            at = point.num_blocks * self._block_size
            if start < at < end and self._is_missing(sequence.block_keys[point.num_blocks - 1]):
                end = at
            point = point.next
        return end

    def must_wait(self, sequence: Sequence, running: list[Sequence], row_indices: Int64s) -> bool:
        """Return whether the first state of a sequence is about to be written: by this step, or by
        a running prompt that has not reached it."""
        count = sequence.num_state_blocks
        if not count or sequence.row_index in self._on_host:
            return False
        key = sequence.block_keys[count - 1]
        found = self.pool.match([key])
        if found:
            return found[0] in self._new
        table, num_tokens = self._table, count * self._block_size
        comes_there = (table.num_computed_tokens[row_indices] < num_tokens) & (
            num_tokens <= table.num_prompt_tokens[row_indices]
        )
        return self._is_missing(key) and any(
            _passes(running[position], count, key)
            for position in np.flatnonzero(comes_there).tolist()
        )

    def entry(self, sequence: Sequence, num_stored: int) -> StateEntry | None:
        """Return the starting point of a sequence with `num_stored` tokens stored in blocks; None
        if too few slots are free."""
        if sequence.row_index in self._on_host:
            entry = StateEntry(NO_STATE, sequence.num_computed_tokens)
        else:
            entry = self._found(sequence, num_stored)
        held = [entry.slot] if entry.slot != NO_STATE else []
        return entry if self.pool.num_free_among(held) < self.pool.num_free else None

    def _found(self, sequence: Sequence, num_stored: int) -> StateEntry:
        """Return the longest kept state of a prompt behind which there is a token to compute."""
        last = min(num_stored, sequence.num_tokens - 1, sequence.score_from)
        for count in range(min(last // self._block_size, len(sequence.block_keys)), 0, -1):
            for slot in self.pool.match([sequence.block_keys[count - 1]]):
                if slot not in self._new:
                    return StateEntry(slot, count * self._block_size)
        return StateEntry(NO_STATE, 0)

    def take(self, sequence: Sequence, entry: StateEntry, step: StepBuilder) -> None:
        """Give a sequence the state of its entry, and release the pins of its wait.

        A sequence with samples to fork pins the last branch point of its prompt instead: samples
        without a batch slot continue from there.
        """
        row_index, slot = sequence.row_index, entry.slot
        if row_index in self._on_host:
            slot, source = self._allocate(), self._on_host[row_index]
            step.transfers.append(BlockTransfer(TransferKind.SWAP_IN, source, slot, self._group))
            self.drop_host_slot(row_index)
        elif slot != NO_STATE:
            self.pool.share([slot])
            self.num_found += 1
        self._table.state_slot[row_index] = slot
        has_samples = self._table.num_pending[row_index] > 1
        self._pin(row_index, _keys_at(sequence)[-1:] if has_samples else [])

    def can_load(self, row_index: int) -> bool:
        """Return whether there are slots for a loaded state and for the next one."""
        return self.pool.num_free + (row_index in self._next) > 1

    def load(self, sequence: Sequence, source: int, num_tokens: int, step: StepBuilder) -> None:
        """Replace the state of a sequence's entry by one that the step loads.

        Transfers come before all chunks of a step, so others may begin with it at once.
        """
        row_index = sequence.row_index
        self.num_found += not self._held(row_index)
        self.release(row_index)
        slot = self._allocate()
        step.transfers.append(BlockTransfer(TransferKind.LOAD, source, slot, self._group))
        self._table.state_slot[row_index] = slot
        key = sequence.block_keys[num_tokens // self._block_size - 1]
        if self._is_missing(key):
            self.pool.publish(slot, key)
            self.num_kept += 1
        self.reserve(row_index)

    def needs_slot(self, row_indices: Int64s) -> Bools:
        """Return a mask of the sequences that need a new slot for their next chunk."""
        slots = self._table.state_slot[row_indices]
        needs: Bools = (slots == NO_STATE) | (self.pool.ref_counts_of(slots) > 1)
        return needs | np.isin(slots, self.pool.published)

    def num_fit(self, needs: Bools) -> int:
        """Return the number of first sequences for which enough slots are free."""
        return int(np.searchsorted(np.cumsum(needs), self.pool.num_free, side="right"))

    def reserve(self, row_index: int) -> bool:
        """Reserve a slot for the next chunk to write; return False if none is free."""
        if row_index in self._next or not self.needs_slot(np.array([row_index]))[0]:
            return True
        if not self.pool.num_free:
            return False
        self._next[row_index] = self._allocate()
        return True

    def advance(self, row_indices: Int64s, step: StepBuilder) -> None:
        """Record the slots of the chunks just added to the step, of these sequences."""
        reads = self._table.state_slot[row_indices]
        writes = reads.copy()
        for position, row_index in enumerate(row_indices.tolist()) if self._next else ():
            if row_index in self._next:
                self._read += self._held(row_index)
                writes[position] = self._next.pop(row_index)
        self._table.state_slot[row_indices] = writes
        step.pass_states(reads, writes)

    def num_spare(self, count: int) -> int:
        """Return the number of drafts, at most `count`, whose states have room: no kept state is
        given up for one."""
        return min(count, self.pool.num_empty)

    def draft(self, row_index: int, count: int, step: StepBuilder) -> None:
        """Record the slots of drafts just added to the step, behind the last chunk of a
        sequence."""
        writes = self._drafted[row_index] = self.pool.allocate(count) or []
        reads = [*self._held(row_index), *writes[:-1]]
        step.pass_states(np.array(reads), np.array(writes))

    def accept(self, row_index: int, count: int) -> None:
        """Continue a sequence from the state behind so many further drafts of it."""
        if count:
            drafted = self._drafted[row_index]
            self.pool.release([*self._held(row_index), *drafted[: count - 1]])
            self._table.state_slot[row_index] = drafted[count - 1]
            del drafted[:count]

    def drop_drafts(self) -> None:
        """Free the slots of drafts that were not accepted."""
        for slots in self._drafted.values():
            self.pool.release(slots)
        self._drafted.clear()

    def publish(self, sequence: Sequence) -> None:
        """Publish the state behind a sequence's last chunk, if a later row needs it."""
        count, rest = divmod(sequence.num_computed_tokens, self._block_size)
        if rest or not 0 < count <= len(sequence.block_keys):
            return
        key = sequence.block_keys[count - 1]
        if self._is_missing(key):
            slot = int(self._table.state_slot[sequence.row_index])
            self.pool.publish(slot, key)
            self._new.add(slot)
            self.num_kept += 1

    def pin_points(self, sequence: Sequence) -> None:
        """Pin the states from which later rows start on the path of the row admitted last."""
        self.pool.pin_only(_keys_at(sequence))

    def end_plan(self) -> None:
        """Unpin all states: no later row starts from one."""
        self.pool.pin_only(())

    def share(self, row_index: int) -> None:
        """Add a reference to the slot of a sequence, whose entry is a copy."""
        self.pool.share(self._held(row_index))

    def release(self, row_index: int) -> None:
        """Free the slots of a sequence."""
        self.pool.release(self._held(row_index))
        self._table.state_slot[row_index] = NO_STATE
        if row_index in self._next:
            self.pool.release([self._next.pop(row_index)])
        self.pool.release(self._drafted.pop(row_index, []))

    def retire(self, row_index: int) -> None:
        """Free the slots and pins of a sequence whose last step has been scheduled."""
        self.unpin(row_index)
        self.release(row_index)

    def swap_out(self, row_index: int, step: StepBuilder) -> bool:
        """Save a sequence's state to the host; return False if that has no room."""
        held = self._held(row_index)
        targets = self.swap_space.take(len(held))
        if targets is None:
            return False
        for source, target in zip(held, targets, strict=True):
            self._on_host[row_index] = target
            step.transfers.append(BlockTransfer(TransferKind.SWAP_OUT, source, target, self._group))
        return True

    def drop_host_slot(self, row_index: int) -> None:
        """Free the host slot of a sequence."""
        if row_index in self._on_host:
            self.swap_space.give_back([self._on_host.pop(row_index)])

    def pin(self, sequence: Sequence) -> None:
        """Pin the state from which a waiting sequence will resume: its last kept one, or that of
        its planned starting point."""
        slot, num_tokens = self._found(sequence, sequence.num_stored_tokens)
        count = sequence.num_state_blocks if slot == NO_STATE else num_tokens // self._block_size
        self._pin(sequence.row_index, sequence.block_keys[max(count - 1, 0) : count])

    def unpin(self, row_index: int) -> None:
        """Unpin the keys of a sequence."""
        self._pin(row_index, [])

    def retract(self, keys: list[BlockKey]) -> None:
        """Remove the states behind these blocks from the cache."""
        for key in keys:
            self.pool.retract_key(key)

    @property
    def peak_slots(self) -> int:
        """Maximum number of held slots."""
        return self.pool.counts.peak_held

    def check(self, held: Set[int], waiting: Set[int]) -> None:
        """Assert that sequences and slots agree. For tests.

        held: row indices of the running sequences. waiting: of those without blocks.
        """
        assert not self._next and not self._read, "a slot that no chunk wrote, or read"
        assert set(self._drafted) <= held, "a slot of drafts of a sequence that does not run"
        self.pool.check([*(self._held(row_index) for row_index in held), *self._drafted.values()])
        assert not any(map(self._held, waiting)), "a waiting sequence holds a slot"
        assert set(self._on_host) <= waiting, "a host slot of a sequence that does not wait"
        on_host = list(self._on_host.values())
        assert len(on_host) == len(set(on_host)), "a host slot is used twice"
        assert len(on_host) + self.swap_space.num_free == self.swap_space.num_blocks, "swap space"
        assert set(self._pinned) <= held | waiting, "a pin was not released"
        pinned = Counter(key.digest for keys in self._pinned.values() for key in keys)
        assert self.pool.num_waiting_for() == pinned, "what sequences pin"

    def _is_missing(self, key: BlockKey) -> bool:
        """Return whether a pinned state does not exist yet."""
        return self.pool.is_pinned(key) and not self.pool.match([key])

    def _held(self, row_index: int) -> list[int]:
        slot = int(self._table.state_slot[row_index])
        return [] if slot == NO_STATE else [slot]

    def _allocate(self) -> int:
        new = self.pool.allocate(1)
        assert new is not None, "fewer slots are free than were counted"
        return new[0]

    def _pin(self, row_index: int, keys: list[BlockKey]) -> None:
        """Replace the pinned keys of a sequence."""
        before = self._pinned.pop(row_index, [])
        if keys:
            self._pinned[row_index] = keys
        self.pool.pin(keys)
        self.pool.unpin(before)


def _keys_at(sequence: Sequence) -> list[BlockKey]:
    """Return the keys of the last blocks before the state points of a sequence, in order."""
    keys, point = [], sequence.state_points
    while point is not None:
        keys.append(sequence.block_keys[point.num_blocks - 1])
        point = point.next
    return keys[::-1]


def _passes(sequence: Sequence, count: int, key: BlockKey) -> bool:
    """Return whether a chunk of a prompt will end after `count` blocks, the last with this key."""
    point = sequence.state_points
    while point is not None and point.num_blocks > count:
        point = point.next
    return point is not None and point.num_blocks == count and sequence.block_keys[count - 1] == key
