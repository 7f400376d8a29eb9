"""PoolSizer: how many blocks the KV pools get, one for each group of layers."""

import sys
from collections.abc import Sequence as Seq
from functools import cached_property

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.sizing.memory import MemoryBudget
from pagedrun.paged.planning.sizing.pool_demand import PoolDemand
from pagedrun.paged.planning.sizing.pool_split import PoolSplit, Sizes
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.option_names import option


class PoolSizer:
    """Sizes the pools of a run, and says beforehand what they will be.

    Blocks are those of the first group, which keeps whole sequences; the pools of groups with a
    window follow from it, see `PoolSplit`.
    """

    def __init__(
        self,
        config: EngineConfig,
        specs: Seq[KVCacheSpec],
        budget: MemoryBudget,
        max_model_len: int,
    ) -> None:
        """Size pools for the groups of layers `specs` within `budget`.

        max_model_len: the most tokens that a prompt and its answer may have together.
        """
        self._config = config
        self._specs = specs
        self._budget = budget
        self._max_model_len = max_model_len

    @cached_property
    def most(self) -> int:
        """The most blocks that the pool can have, whatever the requests need.

        Raises `UsageError` where `choose_sizes` does.
        """
        least = PoolDemand(longest=self._longest, num_sequences=0)
        first, *_ = self._choose(least, sys.maxsize)
        return first

    def check_max_model_len(self) -> None:
        """Raise `UsageError` if the pool cannot hold one row of the length that was asked for."""
        size, asked = self._config.block_size, self._config.max_model_len
        fits = self.most * size + 1  # the last token is never stored
        if asked is not None and min(asked, self._max_model_len) > fits:
            raise UsageError(
                f"{option('max_model_len')} {asked} does not fit: the KV pool has room for "
                f"{self.most} blocks of {size} tokens; the largest that fits is "
                f"{option('max_model_len')} {fits}"
            )

    def sizes(self, first: Plan, *, is_whole: bool) -> Sizes:
        """Return the pools' sizes for a file that begins with the window `first`.

        What later windows need is not known yet: unless the first is the whole file, they may
        need everything. Raises `UsageError` where rows of the plan need more together than the
        memory holds: one that is long, and another one with many beams in windows.
        """
        demand = PoolDemand.of(first, self.windows, is_whole=is_whole)
        needed = self.most
        is_filled = self._budget.is_filled and self._specs[0].bytes_per_token > 0
        if is_whole and not is_filled:
            needed = first.num_blocks_needed(self._config.max_num_seqs)
        return self.sizes_for(demand, needed)

    def sizes_for(self, demand: PoolDemand, num_needed: int = sys.maxsize) -> Sizes:
        """Return the pools' sizes for rows that take so much, and at most so many blocks in all.

        Raises `UsageError` where `sizes` does.
        """
        sizes = self._choose(demand, min(num_needed, self.most, self._most_in_use))
        if sizes[0] < demand.largest:
            raise UsageError(
                f"the memory for keys and values has no room for a row of {demand.largest} "
                f"blocks and the windows of {demand.num_together} beams; raise "
                f"{option('kv_cache_memory_bytes')}, or lower {option('beam_width')}"
            )
        return sizes

    @property
    def windows(self) -> tuple[int, ...]:
        """Those of the groups of layers that have one."""
        return tuple(spec.window for spec in self._specs[1:] if spec.window is not None)

    @property
    def _longest(self) -> int:
        """Blocks of a sequence of the greatest length."""
        return -(-self._max_model_len // self._config.block_size)

    @property
    def _most_in_use(self) -> int:
        """How many blocks a run can ever use: every sequence that runs at full length, and as
        much for the prefix that is kept for the next one."""
        return (self._config.max_num_seqs + 1) * self._longest

    def _choose(self, demand: PoolDemand, num_needed: int) -> Sizes:
        config = self._config
        split = PoolSplit(
            self._specs,
            config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            demand=demand,
        )
        return choose_sizes(
            split,
            num_needed=max(num_needed, 1),
            num_blocks=config.num_blocks,
            kv_cache_memory_bytes=config.kv_cache_memory_bytes,
            budget=self._budget,
        )


def choose_sizes(
    split: PoolSplit,
    *,
    num_needed: int,
    num_blocks: int | None,
    kv_cache_memory_bytes: int | None,
    budget: MemoryBudget,
) -> Sizes:
    """Return the sizes of the pools in blocks.

    `num_blocks` decides on the first if given, then `kv_cache_memory_bytes` on all; otherwise they
    take what the requests need (`num_needed`), up to what the `budget` has for them. Raises
    `UsageError` when not even one block comes out, or more is asked for than is available.
    """
    available, block_bytes = budget.available, split.block_bytes
    if num_blocks is not None:
        if num_blocks < 1:
            raise UsageError(f"{option('num_blocks')} is {num_blocks}; it must be at least 1")
        sizes = split.beside(num_blocks, available)
        if (num_bytes := split.num_bytes(sizes)) > available:
            raise UsageError(
                f"{option('num_blocks')} {num_blocks} takes {num_bytes} bytes, "
                f"but {available} are free; pass at most {split.within(available, num_blocks)[0]}"
            )
        return sizes
    if kv_cache_memory_bytes is not None:
        most_blocks = num_needed if split.first_is_free else sys.maxsize
        sizes = split.within(kv_cache_memory_bytes, most_blocks)
        if sizes[0] < 1:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} {kv_cache_memory_bytes} is less than one "
                f"block, which takes {block_bytes} bytes; raise it, or pass a smaller "
                f"{option('block_size')}"
            )
        if kv_cache_memory_bytes > available:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} is {kv_cache_memory_bytes}, but {available} "
                "bytes are free; pass less"
            )
        return sizes
    sizes = split.within(budget.pool, num_needed)
    if sizes[0] < 1:
        raise UsageError(
            f"no memory for the KV pool: {budget.pool} bytes are free for it and one block takes "
            f"{block_bytes}; free some memory or use a smaller {option('block_size')}"
        )
    return sizes
