"""Books: what the parts of a scheduler keep account of together."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.swap_space import SwapSpace
from pagedrun.paged.report.record.scheduler_counts import SchedulerCounts
from pagedrun.paged.scheduling.groups.kv_group import KVGroup
from pagedrun.paged.scheduling.residency_log import ResidencyLog
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.written_blocks import WrittenBlocks


@dataclass(frozen=True, slots=True)
class Books:
    """The memory, the sequences in it, and what was done with both.

    The first of the `groups` has no window: it keeps all blocks of a sequence. Without
    `prefix_caching` no sequence is given what another one computed.
    """

    groups: tuple[KVGroup, ...]
    prefix_caching: bool
    table: SequenceTable
    counts: SchedulerCounts = field(default_factory=SchedulerCounts)
    residency: ResidencyLog = field(default_factory=ResidencyLog)

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

    def share(self, sequence: Sequence) -> None:
        """Count a sequence, whose tables are copies, as a holder of its blocks."""
        for group in self.groups:
            group.share(sequence.place)

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
        if not keep_progress:
            sequence.forget_blocks()

    def check(self, held: Iterable[Sequence], waiting: Iterable[Sequence]) -> None:
        """Prove that block tables, pools and swap spaces agree. For tests.

        held: the sequences that have blocks. waiting: those that have none.
        """
        held, waiting = list(held), list(waiting)
        for sequence in waiting:
            assert not sequence.block_table, "a waiting sequence holds blocks"
        self.pool.check(sequence.block_table for sequence in held)
        swapped = [block for sequence in waiting for block in sequence.host_blocks.values()]
        assert len(swapped) == len(set(swapped)), "a host block is used twice"
        assert len(swapped) + self.swap_space.num_free == self.swap_space.num_blocks, "swap space"
        for group in self.further:
            group.check([each.place for each in held], {each.place for each in waiting})
        pinned = Counter(key.digest for sequence in waiting for key in sequence.pinned_keys)
        assert self.pool.num_waiting_for() == pinned, "what waiting sequences pin"
        assert not any(sequence.pinned_keys for sequence in held), "a pin not taken back"
