"""KVGroup: blocks of one group of layers, and the sequences that hold them."""

from collections import Counter
from collections.abc import Iterable, Set
from typing import NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import BlockTables
from pagedrun.paged.values.planned_request import BlockKey, BranchPoint


class GroupPool(NamedTuple):
    """KV pool and swap space of a group of layers.

    A token sees the last `window` tokens, itself included; None: all before it.
    """

    pool: BlockPool
    swap_space: SwapSpace
    window: int | None = None

    @classmethod
    def of(
        cls, block_size: int, num_blocks: int, num_host_blocks: int, window: int | None
    ) -> "GroupPool":
        """Return an empty pool."""
        return cls(BlockPool(num_blocks, block_size), SwapSpace(num_host_blocks), window)


class KVGroup:
    """Group of layers with one pool, and one block table per sequence.

    With a `window` the blocks behind it are freed. `index` is its number among the groups. Host
    blocks and pinned keys of waiting sequences are kept here by row index of the table for groups
    behind the first; for the first in the sequence itself.
    """

    def __init__(
        self,
        index: int,
        pool: BlockPool,
        swap_space: SwapSpace,
        tables: BlockTables,
        window: int | None = None,
    ) -> None:
        self.index = index
        self.pool = pool
        self.swap_space = swap_space
        self.tables = tables
        self.window = window
        self.written = WrittenBlocks(pool.num_blocks)
        self.on_host: dict[int, list[int]] = {}
        self.pinned: dict[int, list[BlockKey]] = {}

    def first_read(self, position: int) -> int:
        """Return the index of the first block that the token at a position reads."""
        if self.window is None:
            return 0
        return max(position - self.window + 1, 0) // self.pool.block_size

    def free_behind(self, row_index: int, position: int) -> None:
        """Free the blocks that neither the token at a position nor any later one reads."""
        if self.window is not None:
            self.pool.release(self.tables.take_before(row_index, self.first_read(position)))

    def free_all_behind(self, row_indices: Int64s, positions: Int64s) -> None:
        """Free such blocks of many sequences. row_indices, positions: [num_sequences] int64."""
        if self.window is None:
            return
        firsts = (positions - self.window + 1) // self.pool.block_size
        behind = firsts > self.tables.firsts[row_indices]
        for row_index, first in zip(
            row_indices[behind].tolist(), firsts[behind].tolist(), strict=True
        ):
            self.pool.release(self.tables.take_before(row_index, first))

    def writes_shared(self, row_indices: Int64s, positions: Int64s) -> bool:
        """Return whether any of many sequences writes to a block that others hold too."""
        index = positions // self.pool.block_size
        is_held = index < self.tables.ends[row_indices]
        held = self.tables.ids[row_indices[is_held], index[is_held]]
        return bool((self.pool.ref_counts_of(held) > 1).any())

    def num_missing(self, row_indices: Int64s, ends: Int64s) -> int:
        """Return the number of blocks that many sequences lack for their tokens up to `ends`."""
        needed = -(-ends // self.pool.block_size)
        return int((needed - self.tables.ends[row_indices]).sum())

    def grow(self, row_indices: Int64s, starts: Int64s, ends: Int64s) -> None:
        """Allocate the blocks that many sequences lack for their tokens up to `ends`, and record
        those from `starts` on as stored. Enough blocks must be free."""
        pool, tables, size = self.pool, self.tables, self.pool.block_size
        for row_index, end in zip(row_indices.tolist(), ends.tolist(), strict=True):
            self.extend(row_index, end)
        index = starts // size
        while len(row_indices):
            pool.record_fills(tables.ids[row_indices, index], np.minimum(size, ends - index * size))
            index = index + 1
            goes_on = index * size < ends
            row_indices, index, ends = row_indices[goes_on], index[goes_on], ends[goes_on]

    def num_spare(self, row_index: int, end: int) -> int:
        """Return the number of tokens behind `end` for which a sequence has blocks, or can have
        some in which nothing is cached."""
        num_blocks = int(self.tables.ends[row_index]) + self.pool.num_empty
        return num_blocks * self.pool.block_size - end

    def extend(self, row_index: int, end: int) -> None:
        """Allocate the blocks that a sequence lacks for its tokens up to `end`. Enough blocks must
        be free."""
        missing = self.pool.num_blocks_for(end) - int(self.tables.ends[row_index])
        if missing > 0:
            new = self.pool.allocate(missing)
            assert new is not None, "fewer blocks are free than were counted"
            self.tables.append(row_index, new)

    def cut(self, row_index: int, end: int) -> None:
        """Free the blocks of a sequence that lie behind its tokens up to `end`."""
        num_blocks = self.pool.num_blocks_for(end)
        if num_blocks < self.tables.ends[row_index]:
            self.pool.release(self.tables.held(row_index, num_blocks))
            self.tables.cut(row_index, num_blocks)

    def num_lacking(self, row_index: int, first: int, end: int) -> int:
        """Return the number of blocks that a sequence lacks from index `first` up to `end`."""
        return max(end - max(first, int(self.tables.ends[row_index])), 0)

    def hold(self, row_index: int, first: int, end: int) -> None:
        """Allocate the blocks of a sequence from index `first` up to `end`, and free those before
        them. Enough blocks must be free."""
        held_end = int(self.tables.ends[row_index])
        new = self.pool.allocate(self.num_lacking(row_index, first, end))
        assert new is not None, "fewer blocks are free than were counted"
        self.pool.release(self.tables.take_before(row_index, first))
        if first > held_end:
            self.tables.set(row_index, new, first)
        else:
            self.tables.append(row_index, new)

    def has_gap_before(self, sequence: Sequence) -> bool:
        """Return whether blocks were freed that the sequence's next token reads."""
        first = self.first_read(sequence.num_computed_tokens)
        return first < int(self.tables.firsts[sequence.row_index])

    def release(self, row_index: int) -> None:
        """Free all blocks of a sequence."""
        self.pool.release(self.tables.held(row_index))

    def share(self, row_index: int) -> None:
        """Add a reference to the blocks of a sequence, whose table is a copy."""
        self.pool.share(self.tables.held(row_index))

    def pin_branches(self, keys: list[BlockKey], branch: BranchPoint | None) -> None:
        """Pin the blocks within the window before each point at which later prompts leave the path
        of the row admitted last. keys: of the prompt's blocks."""
        wanted: dict[int, BlockKey] = {}
        size = self.pool.block_size
        while branch is not None and branch.num_blocks:
            # A prompt that ends there computes its last token again.
            first = self.first_read(branch.num_blocks * size - 1)
            wanted |= {index: keys[index] for index in range(first, branch.num_blocks)}
            branch = branch.next
        self.pool.pin_only([wanted[index] for index in sorted(wanted)])

    def pin(self, row_index: int, keys: list[BlockKey]) -> None:
        """Pin the prompt blocks of a preempted sequence, so that they stay cached while there is
        room. keys: of the prompt's stored whole blocks."""
        first, end = int(self.tables.firsts[row_index]), int(self.tables.ends[row_index])
        left = keys[first:end]
        self.pinned[row_index] = left
        self.pool.pin(left)
        for block_id, key in zip(self.tables.held(row_index), left, strict=False):
            self.pool.publish(block_id, key)

    def unpin(self, row_index: int) -> None:
        """Unpin the keys of a waiting sequence."""
        self.pool.unpin(self.pinned.pop(row_index, ()))

    def drop_host_blocks(self, row_index: int) -> None:
        """Free the host blocks of a sequence."""
        self.swap_space.give_back(self.on_host.pop(row_index, []))

    def check(self, held: Iterable[int], waiting: Set[int]) -> None:
        """Assert that tables, pool and swap space of a group behind the first agree. For tests.

        held: row indices of the sequences with blocks. waiting: of those without.
        """
        self.pool.check([self.tables.held(row_index) for row_index in held])
        assert not any(map(self.tables.held, waiting)), "a waiting sequence holds blocks"
        assert set(self.on_host) <= waiting, "host blocks of a sequence that does not wait"
        swapped = [block for blocks in self.on_host.values() for block in blocks]
        assert len(swapped) == len(set(swapped)), "a host block is used twice"
        assert len(swapped) + self.swap_space.num_free == self.swap_space.num_blocks, "swap space"
        assert set(self.pinned) <= waiting, "a pin was not released"
        pinned = Counter(key.digest for keys in self.pinned.values() for key in keys)
        assert self.pool.num_waiting_for() == pinned, "what waiting sequences pin"


class WrittenBlocks:
    """First offsets that the current step writes in blocks; a step is cleared in O(1)."""

    def __init__(self, num_blocks: int) -> None:
        self._step = 1
        self._steps = np.zeros(num_blocks, dtype=np.int64)  # in which each was last written
        self._offsets = np.zeros(num_blocks, dtype=np.int32)

    def clear(self) -> None:
        """Start the next step."""
        self._step += 1

    def note(self, block_ids: "Int32s | int", offsets: "Int64s | int") -> None:
        """Record the first offsets that the step writes in some blocks."""
        self._steps[block_ids] = self._step
        self._offsets[block_ids] = offsets

    def first_offset(self, block_id: int, otherwise: int) -> int:
        """Return the first offset that the step writes in a block; `otherwise` if it does not."""
        if self._steps[block_id] != self._step:
            return otherwise
        return int(self._offsets[block_id])
