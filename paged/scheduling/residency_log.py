"""ResidencyLog: which sequence held which blocks, when, and why it gave them up before its end.

The scheduler tells of every change to a block table. That costs it about a microsecond for a
sequence and a third of one for a block, so it is always on.
"""

from array import array
from collections.abc import Iterator

from pagedrun.paged.report.record.decimated import Decimated
from pagedrun.paged.report.record.residency import Preemption, Replaced, Residency
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.values.preemption_mode import PreemptionMode

MAX_HOLDINGS = 1_000_000
MAX_PREEMPTIONS = 100_000


class ResidencyLog:
    """All residencies of a run, as long as they hold at most `max_holdings` blocks together.

    Beyond that only rows whose index `row_stride` divides are kept, and the stride doubles as
    often as needed: of some rows everything is known, instead of a little of all.
    """

    def __init__(self, max_holdings: int = MAX_HOLDINGS) -> None:
        self.step = 0  # that is being scheduled; whoever runs the steps counts them
        self.row_stride = 1
        self.preemptions: Decimated[Preemption] = Decimated(MAX_PREEMPTIONS)
        self._max_holdings = max_holdings
        self._num_holdings = 0
        self._num_preemptions = 0
        self._current: dict[Sequence, Residency] = {}
        self._over: list[Residency] = []

    def __iter__(self) -> Iterator[Residency]:
        yield from self._over
        yield from self._current.values()

    def begin(self, sequence: Sequence, num_found: int) -> None:
        """Note that a sequence has come in and holds its block table, the first blocks found."""
        row = sequence.request.index
        if row % self.row_stride:
            return
        table = sequence.block_table
        residency = Residency(row, sequence.sample_index, num_found, array("i", table))
        residency.begins = array("i", [self.step]) * len(table)
        self._current[sequence] = residency
        self._count(len(table))

    def grow(self, sequence: Sequence) -> None:
        """Note the blocks that have come to the end of the table."""
        residency = self._current.get(sequence)
        if residency is not None:
            new = sequence.blocks_from(len(residency.block_ids))
            residency.block_ids.extend(new)
            residency.begins.extend([self.step] * len(new))
            self._count(len(new))

    def append(self, sequence: Sequence, block_id: int) -> None:
        """Note one block that has come to the end of the table: `grow` for what is common."""
        residency = self._current.get(sequence)
        if residency is not None:
            residency.block_ids.append(block_id)
            residency.begins.append(self.step)
            self._count(1)

    def replace(self, sequence: Sequence, position: int) -> None:
        """Note that the block at `position` has given place to another."""
        residency = self._current.get(sequence)
        if residency is not None:
            old, began = residency.block_ids[position], residency.begins[position]
            found = position < residency.num_found
            residency.replaced.append(Replaced(position, old, began, self.step, found))
            residency.num_found = min(residency.num_found, position)
            residency.block_ids[position] = sequence.block(position)
            residency.begins[position] = self.step
            self._count(1)

    def end(self, sequence: Sequence) -> None:
        """Note that a sequence has given its blocks back."""
        residency = self._current.pop(sequence, None)
        if residency is not None:
            residency.end = self.step
            self._over.append(residency)

    def preempt(
        self,
        sequence: Sequence,
        mode: PreemptionMode,
        needy: Sequence,
        num_needed: int,
        num_free: int,
    ) -> None:
        """Note that a sequence, before it gives its blocks back, gives way to `needy`."""
        self._num_preemptions += 1
        preemption = Preemption(
            self.step,
            sequence.request.index,
            sequence.sample_index,
            mode,
            sequence.num_stored_tokens,
            sequence.num_blocks,
            needy.request.index,
            num_needed,
            num_free,
        )
        self.preemptions.add(self._num_preemptions, preemption)

    def _count(self, num_new: int) -> None:
        self._num_holdings += num_new
        if self._num_holdings > self._max_holdings:
            self.row_stride *= 2
            self._over = [each for each in self._over if each.row % self.row_stride == 0]
            self._current = {
                sequence: each
                for sequence, each in self._current.items()
                if each.row % self.row_stride == 0
            }
            self._num_holdings = sum(map(len, self))
