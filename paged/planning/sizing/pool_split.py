"""PoolSplit: how the memory for keys and values is cut into pools, one for each group of layers.

The first group keeps whole sequences. A group with a window needs of each sequence that runs what
the window reaches back to, of a step's chunks their tokens, and what waits behind branch points.
More would lie idle in it: all the rest goes to the groups that keep whole sequences, each of which
has as many blocks. Where memory is short it is cut for as many sequences as it has room for.

That is done by levels. Level 0 has what one row needs to go on, and nothing that is kept for
others; level 1 has that as well; each further one is for one sequence more.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Seq

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.planning.sizing.pool_demand import PoolDemand

Sizes = tuple[int, ...]  # blocks of each group, in the groups' order


class PoolSplit:
    """Cuts memory by a step's limits and by what the rows take."""

    def __init__(
        self,
        specs: Seq[KVCacheSpec],
        block_size: int,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        demand: PoolDemand,
    ) -> None:
        """specs: of the groups; the first keeps whole sequences."""
        self._windows = [None, *(spec.window for spec in specs[1:])]
        self._block_bytes = [spec.bytes_per_token * block_size for spec in specs]
        self._block_size = block_size
        self._chunk_blocks = -(-max_num_batched_tokens // block_size)
        self._demand = demand
        most = max_num_seqs
        if demand.num_sequences is not None:
            most = min(most, demand.num_sequences)
        self._levels = range(max(most - demand.num_together, 0) + 2 if most else 1)

    def num_bytes(self, sizes: Seq[int]) -> int:
        """Return the bytes of pools of these sizes."""
        return sum(each * count for each, count in zip(self._block_bytes, sizes, strict=True))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of each group."""
        return sum(self._block_bytes)

    @property
    def first_is_free(self) -> bool:
        """Whether the blocks of the first group take no memory, since it has no layers."""
        return not self._block_bytes[0]

    def beside(self, num_blocks: int, num_bytes: int) -> Sizes:
        """Return the sizes where groups that keep whole sequences have so many blocks: the others
        have as many as the sequences in these can use, as far as `num_bytes` go.

        That is more bytes where not even level 0 fits.
        """
        level = min(
            self._highest(num_blocks, self._whole),
            self._highest(num_bytes, lambda level: self.num_bytes(self._sizes(num_blocks, level))),
        )
        return self._sizes(num_blocks, level)

    def within(self, num_bytes: int, most_blocks: int) -> Sizes:
        """Return the sizes that so many bytes have room for; groups that keep whole sequences have
        at most `most_blocks` blocks, and none where not even one block of each group fits.
        """
        most_blocks = min(most_blocks, sys.maxsize - 1)

        def least_bytes(level: int) -> int:
            return self.num_bytes(self._sizes(min(self._whole(level), most_blocks), level))

        level = self._highest(num_bytes, least_bytes)
        num_blocks = bisect_right(
            range(1, most_blocks + 1),
            num_bytes,
            key=lambda count: self.num_bytes(self._sizes(count, level)),
        )
        return self._sizes(num_blocks, level)

    def _highest(self, limit: int, cost: Callable[[int], int]) -> int:
        """Return the highest level whose cost, which rises, is within a limit; else level 0."""
        return max(bisect_right(self._levels, limit, key=cost) - 1, 0)

    def _running(self, level: int) -> int:
        """Return how many sequences run at once at a level."""
        return self._demand.num_together + max(level - 1, 0)

    def _whole(self, level: int) -> int:
        """Return the blocks of the sequences of a level, or of the largest row, kept whole."""
        return max(self._demand.largest, int(self._running(level) * self._demand.mean))

    def _sizes(self, num_blocks: int, level: int) -> Sizes:
        return tuple(
            num_blocks if window is None else min(self._windowed(window, level), num_blocks)
            for window in self._windows
        )

    def _windowed(self, window: int, level: int) -> int:
        """Return the most blocks that the sequences of a level take where there is a window.

        Tokens of a window, wherever they begin, touch one block more than they fill. A chunk adds
        what its tokens fill and one more; all chunks of a step have the step's tokens together, and
        those of the last step are given back in the course of this one. No sequence takes more
        than it has.
        """
        running, demand = self._running(level), self._demand
        each = -(-(window - 1) // self._block_size) + 2
        if not level:
            return min(running * each + self._chunk_blocks, running * demand.longest)
        reached = min(running * each + 2 * self._chunk_blocks, running * demand.longest)
        return reached + demand.pinned.get(window, 0)
