"""Books: what the parts of a scheduler keep account of together."""

from dataclasses import dataclass, field

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.swap_space import SwapSpace
from pagedrun.paged.report.record.scheduler_counts import SchedulerCounts
from pagedrun.paged.scheduling.residency_log import ResidencyLog
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.written_blocks import WrittenBlocks


@dataclass(frozen=True, slots=True)
class Books:
    """The memory, the sequences in it, and what was done with both.

    Without `prefix_caching` no sequence is given what another one computed. `written` is of the
    step that is being scheduled.
    """

    pool: BlockPool
    swap_space: SwapSpace
    written: WrittenBlocks
    prefix_caching: bool
    table: SequenceTable = field(default_factory=SequenceTable)
    counts: SchedulerCounts = field(default_factory=SchedulerCounts)
    residency: ResidencyLog = field(default_factory=ResidencyLog)

    def drop_host_blocks(self, sequence: Sequence, *, keep_progress: bool = False) -> None:
        """Give back what a swapped-out sequence has on the host; without it, it begins anew."""
        self.swap_space.give_back(list(sequence.host_blocks.values()))
        sequence.host_blocks = {}
        if not keep_progress:
            sequence.forget_blocks()
