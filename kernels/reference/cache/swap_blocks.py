"""Copies of blocks between two KV memories: the device pool and the host pool."""

from torch import Tensor


def swap_blocks(src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` of one KV memory over blocks `dst_ids` of another.

    src_cache, dst_cache: [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]; only
    `num_blocks` and the device may differ. src_ids, dst_ids: [num_copies] int64; `dst_ids` names
    no block twice. The bytes arrive unchanged.
    """
    moved = src_cache[:, :, src_ids.to(src_cache.device)]
    dst_cache[:, :, dst_ids.to(dst_cache.device)] = moved.to(dst_cache.device)
