"""GroupSamples: the pool of a further group of layers at the sampled steps, and who held what."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.report.record.snapshot_tables import Int32s, Table


class HeldBlocks(NamedTuple):
    """The block tables of one group after a step, of the sequences that hold blocks.

    rows, samples: [num_sequences] int32, which they are. firsts, counts: [num_sequences] int32,
    the place in its table of the first block that each holds, and how many. blocks: [counts.sum()]
    int32, all of them, sequence by sequence.
    """

    rows: Int32s
    samples: Int32s
    firsts: Int32s
    counts: Int32s
    blocks: Int32s


class WatchedGroup(Protocol):
    """A group of layers, as a recorder looks at it."""

    @property
    def pool(self) -> BlockPool:
        """Its pool."""

    @property
    def shape(self) -> PoolShape:
        """Its pool in numbers."""

    def held(self) -> HeldBlocks:
        """Return which sequences hold what now."""


@dataclass(frozen=True, slots=True)
class HeldTables(Table):
    """One entry for each block table at each sampled step, in the order of the steps.

    `moment` is the sample's number; the others are as in `HeldBlocks`.
    """

    moment: Int32s
    row: Int32s
    sample: Int32s
    first: Int32s
    count: Int32s

    DTYPES: ClassVar[dict[str, str]] = dict.fromkeys(
        ("moment", "row", "sample", "first", "count"), "int32"
    )


@dataclass(frozen=True, slots=True)
class GroupSamples:
    """One further group. `peak_blocks` were held at once at most, whether sampled or not.

    ref_counts, fills: [num_samples, num_blocks] uint16, as in `PoolSamples`. blocks:
    [tables.count.sum()] int32, those of all tables, one after the other.
    """

    shape: PoolShape
    peak_blocks: int
    ref_counts: NDArray[np.uint16]
    fills: NDArray[np.uint16]
    tables: HeldTables
    blocks: Int32s

    def tables_of(self, row: int, moment: int) -> list[tuple[int, int, Int32s]]:
        """Return the sample's number, the first place and the blocks of each table of a row."""
        ends = np.cumsum(self.tables.count, dtype=np.int64)
        (mine,) = np.nonzero((self.tables.row == row) & (self.tables.moment == moment))
        return [
            (
                int(self.tables.sample[place]),
                int(self.tables.first[place]),
                self.blocks[ends[place] - self.tables.count[place] : ends[place]],
            )
            for place in mine.tolist()
        ]
