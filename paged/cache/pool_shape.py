"""PoolShape: the pool behind a group of layers, in numbers."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class PoolShape:
    """`bytes_per_token` is what a token takes in all `num_layers` of the group. The layers see the
    last `window` tokens, None: all."""

    num_layers: int
    window: int | None
    num_blocks: int
    bytes_per_token: int

    @classmethod
    def of_all(cls, specs: Seq[KVCacheSpec], sizes: Seq[int]) -> "tuple[PoolShape, ...]":
        """Return the pools of groups that keep `specs`, of so many blocks each."""
        return tuple(
            cls(spec.num_layers, spec.window, num_blocks, spec.bytes_per_token)
            for spec, num_blocks in zip(specs, sizes, strict=True)
        )

    def num_bytes(self, block_size: int) -> int:
        """Return the bytes of the pool."""
        return self.num_blocks * block_size * self.bytes_per_token
