"""State of a scheduler: pools, sequence table, counters and residency log.

The log records which sequence held which blocks, when, and why it was preempted. It costs
about a microsecond for a sequence and a third of one for a block, so it is always on.
"""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace
from pagedrun.paged.metrics.recorder import Branching, PreemptionEvent, Residency, Shortage
from pagedrun.paged.metrics.timeline import Decimated, SchedulerCounts
from pagedrun.paged.scheduling.kv_groups import GroupPool, KVGroup
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.states import NoStates, StatePool, StateSlots
from pagedrun.paged.values.engine_config import PreemptionMode

MAX_HOLDINGS = 1_000_000
MAX_PREEMPTIONS = 100_000
MAX_ROW_STRIDE = 2**30  # more than the rows of any run: only the first row is kept


class ResidencyLog:
    """All residencies of a run, as long as they hold at most `max_holdings` blocks together.

    Beyond that only rows whose index `row_stride` divides are kept, and the stride doubles as
    often as needed: of some rows everything is known, instead of a little of all.
    """

    def __init__(self, max_holdings: int = MAX_HOLDINGS) -> None:
        self.step = 0  # being scheduled; counted by the caller
        self.row_stride = 1
        self.branchings: list[Branching] = []
        self.preemptions: Decimated[PreemptionEvent] = Decimated(MAX_PREEMPTIONS)
        self._max_holdings = max_holdings
        self._num_holdings = 0
        self._num_preemptions = 0
        self._current: dict[Sequence, Residency] = {}
        self._over: list[Residency] = []

    def __iter__(self) -> Iterator[Residency]:
        yield from self._over
        yield from self._current.values()

    def begin(self, sequence: Sequence, num_found: int) -> None:
        """Record the admission of a sequence; the first `num_found` blocks were in the cache."""
        row = sequence.request.index
        if row % self.row_stride:
            return
        table = sequence.block_table
        residency = Residency(row, sequence.sample_index)
        residency.take(table[:num_found], self.step, found=True)
        residency.take(table[num_found:], self.step, found=False)
        self._current[sequence] = residency
        self._count(len(table))

    def grow(self, sequence: Sequence) -> None:
        """Record blocks appended to the table."""
        residency = self._current.get(sequence)
        if residency is not None:
            new = sequence.blocks_from(len(residency.block_ids))
            residency.take(new, self.step, found=False)
            self._count(len(new))

    def append(self, sequence: Sequence, block_id: int) -> None:
        """Record one block appended to the table: a faster `grow` for the common case."""
        residency = self._current.get(sequence)
        if residency is not None:
            residency.block_ids.append(block_id)
            residency.begins.append(self.step)
            residency.found.append(False)
            self._count(1)

    def replace(self, sequence: Sequence, position: int) -> None:
        """Record that the block at `position` was replaced."""
        residency = self._current.get(sequence)
        if residency is not None:
            residency.give(position, self.step)
            residency.block_ids[position] = sequence.block(position)
            residency.begins[position] = self.step
            residency.found[position] = False
            self._count(1)

    def pass_on(self, dead: Sequence, beam: Sequence, num_common: int) -> None:
        """Record that a forked beam replaces one that died: they share the first `num_common`
        blocks; its other blocks count as found."""
        residency = self._current.pop(dead, None)
        if residency is not None:
            for position in range(num_common, len(residency.block_ids)):
                residency.give(position, self.step)
            for column in (residency.block_ids, residency.begins, residency.found):
                del column[num_common:]
            new = beam.blocks_from(num_common)
            residency.take(new, self.step, found=True)
            self._current[beam] = residency
            self._count(len(new))

    def branch(self, row: int, forked: int, died: int, freed: int) -> None:
        """Record the beam events of a row; see `Branching`."""
        if row % self.row_stride == 0:
            self.branchings.append(Branching(self.step, row, forked, died, freed))
            self._count(1)

    def end(self, sequence: Sequence) -> None:
        """Record that a sequence has freed its blocks."""
        residency = self._current.pop(sequence, None)
        if residency is not None:
            residency.end = self.step
            self._over.append(residency)

    def preempt(self, sequence: Sequence, mode: PreemptionMode, cause: Shortage) -> None:
        """Record the preemption of a sequence, before it returns its blocks."""
        self._num_preemptions += 1
        preemption = PreemptionEvent(
            self.step,
            sequence.request.index,
            sequence.sample_index,
            mode,
            sequence.num_stored_tokens,
            sequence.num_blocks,
            cause,
        )
        self.preemptions.add(self._num_preemptions, preemption)

    def _count(self, num_new: int) -> None:
        self._num_holdings += num_new
        if self._num_holdings > self._max_holdings and self.row_stride < MAX_ROW_STRIDE:
            self.row_stride *= 2
            self._over = [each for each in self._over if each.row % self.row_stride == 0]
            self.branchings = [each for each in self.branchings if each.row % self.row_stride == 0]
            self._current = {
                sequence: each
                for sequence, each in self._current.items()
                if each.row % self.row_stride == 0
            }
            self._num_holdings = sum(map(len, self)) + len(self.branchings)


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """KV pools, sequence table and counters of a run."""

    groups: tuple[KVGroup, ...]
    prefix_caching: bool
    table: SequenceTable
    states: NoStates
    counts: SchedulerCounts = field(default_factory=SchedulerCounts)
    residency: ResidencyLog = field(default_factory=ResidencyLog)

    @classmethod
    def of(
        cls,
        memory: Seq[GroupPool],
        states: StatePool | None,
        table: SequenceTable,
        *,
        prefix_caching: bool,
    ) -> "SchedulerState":
        """Return the state at the start of a run; the table has block tables for these groups."""
        groups = tuple(
            KVGroup(index, given.pool, given.swap_space, tables, given.window)
            for index, (given, tables) in enumerate(zip(memory, table.kv_groups, strict=True))
        )
        slots = NoStates()
        if states is not None:
            slots = StateSlots(states, table, memory[0].pool.block_size, len(groups))
        return cls(groups, prefix_caching, table, slots)

    @property
    def pool(self) -> BlockPool:
        """Pool of the first group."""
        return self.groups[0].pool

    @property
    def swap_space(self) -> SwapSpace:
        """Swap space of the first group."""
        return self.groups[0].swap_space

    @property
    def further(self) -> tuple[KVGroup, ...]:
        """Groups after the first, most of which free blocks before a window."""
        return self.groups[1:]

    def release(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence."""
        for group in self.groups:
            group.release(sequence.row_index)
        self.states.release(sequence.row_index)

    def share(self, sequence: Sequence) -> None:
        """Add a reference to the blocks of a sequence, whose tables are copies."""
        for group in self.groups:
            group.share(sequence.row_index)
        self.states.share(sequence.row_index)

    def unpin(self, sequence: Sequence) -> None:
        """Unpin the keys of a waiting sequence."""
        self.pool.unpin(sequence.pinned_keys)
        sequence.pinned_keys = []
        for group in self.further:
            group.unpin(sequence.row_index)

    def drop_host_blocks(self, sequence: Sequence, *, keep_progress: bool = False) -> None:
        """Free the host blocks of a swapped-out sequence; it restarts unless `keep_progress`."""
        self.swap_space.give_back(list(sequence.host_blocks.values()))
        sequence.host_blocks = {}
        for group in self.further:
            group.drop_host_blocks(sequence.row_index)
        self.states.drop_host_slot(sequence.row_index)
        if not keep_progress:
            sequence.forget_blocks()

    def end_plan(self) -> None:
        """Unpin all prefixes: no later row needs one."""
        self.pool.pin_path(())
        for group in self.further:
            group.pool.pin_only(())
        self.states.end_plan()

    def retract(self, sequence: Sequence) -> None:
        """Remove the published blocks of a sequence from the cache."""
        own = slice(sequence.num_hit_blocks, sequence.num_published_blocks)
        for block_id in sequence.block_table[own]:
            self.pool.retract(block_id)
        for group in self.further:  # which may not hold them any more
            for key in sequence.block_keys[own]:
                group.pool.retract_key(key)
        self.states.retract(sequence.block_keys)

    def check(self, held: Seq[Sequence], waiting: Seq[Sequence]) -> None:
        """Assert that tables, pools and swap spaces agree. For tests.

        held: sequences with blocks. waiting: sequences without.
        """
        assert not any(each.block_table for each in waiting), "a waiting sequence holds blocks"
        self.pool.check(each.block_table for each in held)
        swapped = [block for each in waiting for block in each.host_blocks.values()]
        assert len(swapped) == len(set(swapped)), "a host block is used twice"
        assert len(swapped) + self.swap_space.num_free == self.swap_space.num_blocks, "swap space"
        row_indices, waiting_rows = ({each.row_index for each in some} for some in (held, waiting))
        for group in self.further:
            group.check(row_indices, waiting_rows)
        self.states.check(row_indices, waiting_rows)
        pinned = Counter(key.digest for each in waiting for key in each.pinned_keys)
        assert self.pool.num_waiting_for() == pinned, "what waiting sequences pin"
        assert not any(each.pinned_keys for each in held), "a pin was not released"
