"""Books: what the parts of a scheduler keep account of together."""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.swap_space import SwapSpace
from pagedrun.paged.report.record.scheduler_counts import SchedulerCounts
from pagedrun.paged.scheduling.groups.kv_group import GroupPool, KVGroup
from pagedrun.paged.scheduling.groups.no_states import NoStates, StatePool
from pagedrun.paged.scheduling.groups.state_slots import StateSlots
from pagedrun.paged.scheduling.residency_log import ResidencyLog
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.written_blocks import WrittenBlocks


@dataclass(frozen=True, slots=True)
class Books:
    """The memory, the sequences in it, and what was done with both.

    The first of the `groups` has no window: it keeps all blocks of a sequence. Without
    `prefix_caching` no sequence is given what another one computed. `states` are those of recurrent
    layers.
    """

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
    ) -> "Books":
        """Begin books of the groups' memory, for which the table has block tables."""
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
        """The first group's."""
        return self.groups[0].pool

    @property
    def swap_space(self) -> SwapSpace:
        """The first group's."""
        return self.groups[0].swap_space

    @property
    def written(self) -> WrittenBlocks:
        """What the step that is being scheduled writes in the first group."""
        return self.groups[0].written

    @property
    def further(self) -> tuple[KVGroup, ...]:
        """The groups behind the first, most of which give blocks back behind a window."""
        return self.groups[1:]

    def release(self, sequence: Sequence) -> None:
        """Give back all blocks of a sequence."""
        for group in self.groups:
            group.release(sequence.place)
        self.states.release(sequence.place)

    def share(self, sequence: Sequence) -> None:
        """Count a sequence, whose tables are copies, as a holder of its blocks."""
        for group in self.groups:
            group.share(sequence.place)
        self.states.share(sequence.place)

    def unpin(self, sequence: Sequence) -> None:
        """Take back what a waiting sequence has pinned."""
        self.pool.unpin(sequence.pinned_keys)
        sequence.pinned_keys = []
        for group in self.further:
            group.unpin(sequence.place)

    def drop_host_blocks(self, sequence: Sequence, *, keep_progress: bool = False) -> None:
        """Give back what a swapped-out sequence has on the host; without it, it begins anew."""
        self.swap_space.give_back(list(sequence.host_blocks.values()))
        sequence.host_blocks = {}
        for group in self.further:
            group.drop_host_blocks(sequence.place)
        self.states.drop_host_slot(sequence.place)
        if not keep_progress:
            sequence.forget_blocks()

    def end_plan(self) -> None:
        """Take note that no later row will ask for a prefix."""
        self.pool.pin_path(())
        for group in self.further:
            group.pool.pin_only(())
        self.states.end_plan()

    def retract(self, sequence: Sequence) -> None:
        """Make what a sequence has published impossible to find."""
        own = slice(sequence.num_hit_blocks, sequence.num_published_blocks)
        for block_id in sequence.block_table[own]:
            self.pool.retract(block_id)
        for group in self.further:  # which may not hold them any more
            for key in sequence.block_keys[own]:
                group.pool.retract_key(key)
        self.states.retract(sequence.block_keys)

    def check(self, held: Seq[Sequence], waiting: Seq[Sequence]) -> None:
        """Prove that tables, pools and swap spaces agree. For tests.

        held: the sequences that have blocks. waiting: those that have none.
        """
        assert not any(each.block_table for each in waiting), "a waiting sequence holds blocks"
        self.pool.check(each.block_table for each in held)
        swapped = [block for each in waiting for block in each.host_blocks.values()]
        assert len(swapped) == len(set(swapped)), "a host block is used twice"
        assert len(swapped) + self.swap_space.num_free == self.swap_space.num_blocks, "swap space"
        places, waiting_places = ({each.place for each in some} for some in (held, waiting))
        for group in self.further:
            group.check(places, waiting_places)
        self.states.check(places, waiting_places)
        pinned = Counter(key.digest for each in waiting for key in each.pinned_keys)
        assert self.pool.num_waiting_for() == pinned, "what waiting sequences pin"
        assert not any(each.pinned_keys for each in held), "a pin not taken back"
