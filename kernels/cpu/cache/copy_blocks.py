"""Copies of blocks within one KV memory: what copy-on-write does."""

from torch import Tensor

from pagedrun.kernels.cpu.cache.swap_blocks import swap_blocks


def copy_blocks(kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` over blocks `dst_ids` in every layer; see the reference."""
    swap_blocks(kv_cache, kv_cache, src_ids, dst_ids)
