"""Copies of blocks within one KV memory: what copy-on-write does."""

from torch import Tensor


def copy_blocks(kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` over blocks `dst_ids`, in every layer, keys and values.

    kv_cache: [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim], written in place.
    src_ids, dst_ids: [num_copies] int64 on the cache's device. No block may be written twice, nor
    be both read and written.
    """
    kv_cache[:, :, dst_ids] = kv_cache[:, :, src_ids]
