"""ResidencyLog: which sequence held which blocks, when, and why it gave them up before its end.

The scheduler tells of every change to a block table. That costs it about a microsecond for a
sequence and a third of one for a block, so it is always on.
"""

from collections.abc import Iterator

from pagedrun.paged.report.record.decimated import Decimated
from pagedrun.paged.report.record.residency import Branching, Preemption, Residency, Shortage
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.values.preemption_mode import PreemptionMode

MAX_HOLDINGS = 1_000_000
MAX_PREEMPTIONS = 100_000
MAX_ROW_STRIDE = 2**30  # more rows than a run has: what the first alone holds is kept


class ResidencyLog:
    """All residencies of a run, as long as they hold at most `max_holdings` blocks together.

    Beyond that only rows whose index `row_stride` divides are kept, and the stride doubles as
    often as needed: of some rows everything is known, instead of a little of all.
    """

    def __init__(self, max_holdings: int = MAX_HOLDINGS) -> None:
        self.step = 0  # that is being scheduled; whoever runs the steps counts them
        self.row_stride = 1
        self.branchings: list[Branching] = []
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
        residency = Residency(row, sequence.sample_index)
        residency.take(table[:num_found], self.step, found=True)
        residency.take(table[num_found:], self.step, found=False)
        self._current[sequence] = residency
        self._count(len(table))

    def grow(self, sequence: Sequence) -> None:
        """Note the blocks that have come to the end of the table."""
        residency = self._current.get(sequence)
        if residency is not None:
            new = sequence.blocks_from(len(residency.block_ids))
            residency.take(new, self.step, found=False)
            self._count(len(new))

    def append(self, sequence: Sequence, block_id: int) -> None:
        """Note one block that has come to the end of the table: `grow` for what is common."""
        residency = self._current.get(sequence)
        if residency is not None:
            residency.block_ids.append(block_id)
            residency.begins.append(self.step)
            residency.found.append(False)
            self._count(1)

    def replace(self, sequence: Sequence, position: int) -> None:
        """Note that the block at `position` has given place to another."""
        residency = self._current.get(sequence)
        if residency is not None:
            residency.give(position, self.step)
            residency.block_ids[position] = sequence.block(position)
            residency.begins[position] = self.step
            residency.found[position] = False
            self._count(1)

    def pass_on(self, dead: Sequence, beam: Sequence, num_common: int) -> None:
        """Note that a beam which has forked is in the place of one that died: they hold the same
        blocks up to `num_common`, and behind them it has found what it holds."""
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
        """Note what became of the beams of a row; see `Branching`."""
        if row % self.row_stride == 0:
            self.branchings.append(Branching(self.step, row, forked, died, freed))
            self._count(1)

    def end(self, sequence: Sequence) -> None:
        """Note that a sequence has given its blocks back."""
        residency = self._current.pop(sequence, None)
        if residency is not None:
            residency.end = self.step
            self._over.append(residency)

    def preempt(self, sequence: Sequence, mode: PreemptionMode, cause: Shortage) -> None:
        """Note that a sequence, before it gives its blocks back, gives way."""
        self._num_preemptions += 1
        preemption = Preemption(
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
