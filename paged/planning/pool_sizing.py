"""PoolSizer: how many blocks the KV pool gets."""

import sys
from collections.abc import Sequence as Seq
from functools import cached_property

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.option_names import option


class PoolSizer:
    """Sizes the pool of a run, and says beforehand what it will be."""

    def __init__(
        self,
        config: EngineConfig,
        specs: Seq[KVCacheSpec],
        budget: MemoryBudget,
        max_model_len: int,
    ) -> None:
        """Size a pool for the groups of layers `specs` within `budget`.

        max_model_len: the most tokens that a prompt and its answer may have together.
        """
        self._config = config
        self._budget = budget
        self._max_model_len = max_model_len
        self._bytes_per_block = sum(spec.bytes_per_token for spec in specs) * config.block_size

    @cached_property
    def most(self) -> int:
        """The most blocks that the pool can have, whatever the requests need.

        Raises `UsageError` where `choose_num_blocks` does.
        """
        return self._choose(sys.maxsize)

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

    def num_blocks(self, first: Plan, *, is_whole: bool) -> int:
        """Return the size of the pool for a file that begins with the window `first`.

        What later windows need is not known yet: unless the first is the whole file, they may
        need everything.
        """
        config = self._config
        needed = self.most
        if is_whole and not self._budget.is_filled:
            needed = first.num_blocks_needed(config.max_num_seqs)
        return self._choose(min(needed, self._most_in_use))

    @property
    def _most_in_use(self) -> int:
        """How many blocks a run can ever use: every sequence that runs at full length, and as
        much for the prefix that is kept for the next one."""
        config = self._config
        return (config.max_num_seqs + 1) * -(-self._max_model_len // config.block_size)

    def _choose(self, num_needed: int) -> int:
        return choose_num_blocks(
            bytes_per_block=self._bytes_per_block,
            num_needed=max(num_needed, 1),
            num_blocks=self._config.num_blocks,
            kv_cache_memory_bytes=self._config.kv_cache_memory_bytes,
            budget=self._budget,
        )


def choose_num_blocks(
    *,
    bytes_per_block: int,
    num_needed: int,
    num_blocks: int | None,
    kv_cache_memory_bytes: int | None,
    budget: MemoryBudget,
) -> int:
    """Return the size of the pool in blocks.

    `num_blocks` decides if given, then `kv_cache_memory_bytes`; otherwise the pool takes what the
    requests need (`num_needed`), up to what the `budget` has for it. Raises `UsageError` when
    not even one block comes out, or more is asked for than is available.
    """
    available = budget.available
    if num_blocks is not None:
        if num_blocks < 1:
            raise UsageError(f"{option('num_blocks')} is {num_blocks}; it must be at least 1")
        if num_blocks * bytes_per_block > available:
            raise UsageError(
                f"{option('num_blocks')} {num_blocks} takes {num_blocks * bytes_per_block} bytes, "
                f"but {available} are free; pass at most {available // bytes_per_block}"
            )
        return num_blocks
    if kv_cache_memory_bytes is not None:
        count = kv_cache_memory_bytes // bytes_per_block
        if count < 1:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} {kv_cache_memory_bytes} holds no block: one "
                f"takes {bytes_per_block} bytes; give more, or a smaller {option('block_size')}"
            )
        if kv_cache_memory_bytes > available:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} is {kv_cache_memory_bytes}, but {available} "
                "bytes are free; pass less"
            )
        return count
    count = min(num_needed, budget.pool // bytes_per_block)
    if count < 1:
        raise UsageError(
            f"no memory for the KV pool: {budget.pool} bytes are free for it and one block takes "
            f"{bytes_per_block}; free some memory or use a smaller {option('block_size')}"
        )
    return count
