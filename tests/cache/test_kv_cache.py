"""A cache of two groups of layers: heads and pools of their own, and no byte goes astray."""

import torch

from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVLayerIndex
from pagedrun.paged.cache.kv_cache import KVCache, KVMemory
from pagedrun.paged.execution.device import Device

FULL = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=6, dtype="float32")
SLIDING = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=4, dtype="float32", window=8)
DEVICE = Device(torch.device("cpu"), Backend(), async_scheduling=False)


def made() -> KVCache:
    cache = KVCache([KVMemory(FULL, 4, 9, 2, DEVICE), KVMemory(SLIDING, 4, 5, 2, DEVICE)])
    for group in cache.groups:
        group.blocks.copy_(torch.arange(group.blocks.numel()).view_as(group.blocks))
    return cache


def test_a_layer_has_the_heads_of_its_group() -> None:
    cache = made()
    assert cache.layer(KVLayerIndex(0, 0)).keys.shape == (9, 1, 4, 6)
    assert cache.layer(KVLayerIndex(1, 2)).values.shape == (5, 2, 4, 4)
    expected = 4 * (9 * FULL.bytes_per_token + 5 * SLIDING.bytes_per_token)
    assert cache.num_bytes == expected


def test_a_block_moves_in_its_group_alone() -> None:
    cache, before = made(), made()
    cache.transfer(
        [
            BlockTransfer(TransferKind.COPY, 1, 3, group=1),
            BlockTransfer(TransferKind.COPY, 0, 2),
            BlockTransfer(TransferKind.COPY, 3, 4, group=1),
        ]
    )
    (full, sliding), (old_full, old_sliding) = cache.groups, before.groups
    assert torch.equal(full.blocks[:, :, 2], old_full.blocks[:, :, 0])
    assert torch.equal(full.blocks[:, :, 3:], old_full.blocks[:, :, 3:])
    assert torch.equal(sliding.blocks[:, :, 3], old_sliding.blocks[:, :, 1])
    assert torch.equal(sliding.blocks[:, :, 4], old_sliding.blocks[:, :, 1])
    assert torch.equal(sliding.blocks[:, :, :3], old_sliding.blocks[:, :, :3])
