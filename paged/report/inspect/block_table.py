"""BlockTable: where the tokens of one sequence lay at one moment, logical to physical."""

from dataclasses import dataclass

import numpy as np

from pagedrun.paged.report.inspect.block_states import BlockState, block_states
from pagedrun.paged.report.inspect.moment import Moment
from pagedrun.paged.report.record.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One block of a table: the sequence's block number `logical` is the pool's `physical`.

    `tokens` are stored in it, by all its holders. It was taken in step `since`: `found` with its
    content, or `copied` from a shared block that the sequence was to write into, or else empty.
    """

    logical: int
    physical: int
    ref_count: int
    state: BlockState
    tokens: int
    found: bool
    copied: bool
    since: int


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The blocks that sample `sample` of row `row` held, by logical number."""

    row: int
    sample: int
    block_size: int
    entries: tuple[TableEntry, ...]

    @property
    def last(self) -> TableEntry | None:
        """The last block that stores anything."""
        stored = (entry for entry in reversed(self.entries) if entry.tokens)
        return next(stored, None)

    @property
    def num_tokens(self) -> int:
        """Tokens that the sequence has stored, as far as its last block tells."""
        last = self.last
        return 0 if last is None else last.logical * self.block_size + last.tokens

    @property
    def last_slot(self) -> int | None:
        """The slot of the last token: physical block times block size, plus its place in it."""
        last = self.last
        return None if last is None else last.physical * self.block_size + last.tokens - 1


def block_tables(snapshot: Snapshot, row: int, moment: Moment) -> list[BlockTable]:
    """Return the tables of the row's samples that held blocks at the moment, by sample."""
    held = snapshot.holdings.where(snapshot.holdings.row == row)
    # Where the row gave up a block, and when. A new one in the same step is a copy of that: what
    # is preempted comes back in a later step.
    left = {
        (sample, position, end)
        for sample, position, end in zip(
            held.sample.tolist(), held.position.tolist(), held.end.tolist(), strict=True
        )
    }
    held = held.where((held.begin <= moment.step) & (moment.step < held.end))
    held = held.where(np.lexsort((held.begin, held.position, held.sample)))
    states = block_states(snapshot.samples, moment.number)[held.block].tolist()
    ref_counts = snapshot.samples.ref_counts[moment.number][held.block].tolist()
    fills = snapshot.samples.fills[moment.number][held.block].tolist()
    entries: dict[int, list[TableEntry]] = {}
    for place, sample in enumerate(held.sample.tolist()):
        logical, begin = int(held.position[place]), int(held.begin[place])
        entries.setdefault(sample, []).append(
            TableEntry(
                logical=logical,
                physical=int(held.block[place]),
                ref_count=ref_counts[place],
                state=BlockState(states[place]),
                tokens=fills[place],
                found=bool(held.found[place]),
                copied=not held.found[place] and (sample, logical, begin) in left,
                since=begin,
            )
        )
    size = snapshot.block_size
    return [BlockTable(row, sample, size, tuple(each)) for sample, each in entries.items()]


def residencies(snapshot: Snapshot, row: int) -> list[tuple[int, int]]:
    """Return the stretches of steps [begin, end) in which the row held blocks, in order."""
    held = snapshot.holdings.where(snapshot.holdings.row == row)
    order = np.argsort(held.begin, kind="stable")
    begins, ends = held.begin[order], np.maximum.accumulate(held.end[order])
    if not len(begins):
        return []
    # A stretch begins where everything before it has ended.
    (first,) = np.nonzero(np.append(True, begins[1:] > ends[:-1]))
    last = np.append(first[1:], len(begins)) - 1
    return list(zip(begins[first].tolist(), ends[last].tolist(), strict=True))
