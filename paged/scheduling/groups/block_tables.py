"""BlockTables: which blocks hold the tokens of each sequence, in one group of layers."""

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

NO_BLOCK = -1  # given back
_FIRST_WIDTH = 16


class BlockTables:
    """The tables of all sequences, by place; arrays grow as needed, so keep no view of them.

    ids: [capacity, width] int32, block `index` of a sequence holds its tokens from
    `index * block_size` on. ends: [capacity] int64, the index behind the last block of each.
    firsts: [capacity] int64, the index of the first that it still holds: those before it, which no
    later token reads, were given back, and their ids are `NO_BLOCK`.
    """

    def __init__(self, capacity: int) -> None:
        self.ids: Int32s = np.zeros((capacity, _FIRST_WIDTH), dtype=np.int32)
        self.firsts: Int64s = np.zeros(capacity, dtype=np.int64)
        self.ends: Int64s = np.zeros(capacity, dtype=np.int64)

    def block(self, place: int, index: int) -> int:
        """Return the block at an index of a table."""
        return int(self.ids[place, index])

    def has(self, place: int, index: int) -> bool:
        """Return whether a sequence holds a block at an index of its table."""
        return bool(self.firsts[place] <= index < self.ends[place])

    def held(self, place: int, start: int = 0) -> list[int]:
        """Return the blocks that a sequence holds, from index `start` on."""
        first = max(start, int(self.firsts[place]))
        ids: list[int] = self.ids[place, first : self.ends[place]].tolist()
        return ids

    def set(self, place: int, block_ids: list[int], first: int = 0) -> None:
        """Let a table be these blocks, the first of them at index `first`."""
        self.firsts[place] = first
        self.ends[place] = 0
        self.append(place, [NO_BLOCK] * first + block_ids)

    def append(self, place: int, block_ids: list[int]) -> None:
        """Put blocks at the end of a table."""
        first = int(self.ends[place])
        end = first + len(block_ids)
        if end > self.ids.shape[1]:
            self.ids = widened(self.ids, end)
        self.ids[place, first:end] = block_ids
        self.ends[place] = end

    def append_one(self, place: int, block_id: int) -> None:
        """Put one block at the end of a table."""
        count = self.ends[place]
        if count == self.ids.shape[1]:
            self.ids = widened(self.ids, count + 1)
        self.ids[place, count] = block_id
        self.ends[place] = count + 1

    def replace(self, place: int, index: int, block_id: int) -> None:
        """Put another block at an index of a table."""
        self.ids[place, index] = block_id

    def cut(self, place: int, end: int) -> None:
        """Let a table end at index `end`; the caller has counted the references."""
        self.ends[place] = end
        self.firsts[place] = min(self.firsts[place], end)

    def take_before(self, place: int, index: int) -> list[int]:
        """Take the blocks before an index out of a table; return them, to be given back."""
        first, index = int(self.firsts[place]), min(index, int(self.ends[place]))
        if index <= first:
            return []
        taken: list[int] = self.ids[place, first:index].tolist()
        self.ids[place, first:index] = NO_BLOCK
        self.firsts[place] = index
        return taken

    def num_common(self, one: int, two: int) -> int:
        """Return how many blocks, from the first on, two sequences have in common."""
        count = int(min(self.ends[one], self.ends[two]))
        differ = np.flatnonzero(self.ids[one, :count] != self.ids[two, :count])
        return int(differ[0]) if len(differ) else count

    def copy(self, source: int, target: int) -> None:
        """Give `target`, whose place was a hole, the same table."""
        end = self.ends[source]
        self.ids[target, :end] = self.ids[source, :end]
        self.firsts[target], self.ends[target] = self.firsts[source], end

    def gather(self, places: Int64s) -> Int32s:
        """Return copies of tables, [num_places, longest] int32, zeros where there is no block."""
        lengths = self.ends[places]
        width = int(lengths.max(initial=0))
        tables = self.ids[places, :width]
        tables[np.arange(width) >= lengths[:, None]] = 0
        if self.firsts[places].any():
            np.maximum(tables, 0, out=tables)
        return tables

    def add_places(self, count: int) -> None:
        """Make room for so many more sequences, without blocks."""
        self.ids = np.concatenate([self.ids, np.zeros((count, self.ids.shape[1]), dtype=np.int32)])
        self.firsts = np.concatenate([self.firsts, np.zeros(count, dtype=np.int64)])
        self.ends = np.concatenate([self.ends, np.zeros(count, dtype=np.int64)])


def widened(rows: Int32s, width: int) -> Int32s:
    """Return the same with room for at least `width` in each row, and twice as much as before."""
    wider = np.zeros((len(rows), max(width, 2 * rows.shape[1])), dtype=np.int32)
    wider[:, : rows.shape[1]] = rows
    return wider
