"""KVMemory: the tensors behind one block pool, allocated once, and the moves between them."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.kv_scales import KVScales
from pagedrun.paged.cache.block_memory import BlockMemory
from pagedrun.paged.cache.block_transfer import BlockTransfer
from pagedrun.paged.cache.cache_device import CacheDevice
from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec


def allocate_blocks(
    spec: KVCacheSpec,
    num_blocks: int,
    block_size: int,
    device: torch.device,
    *,
    pinned: bool = False,
) -> Tensor:
    """Return unwritten memory for `num_blocks` blocks, page-locked if `pinned`.

    [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]: one layer's keys for one
    head and block lie together, which is what attention reads in one go. Not filled: what an
    unwritten slot holds must never matter, and the system only backs pages that are written.
    """
    return torch.empty(
        (spec.num_layers, 2, num_blocks, spec.num_kv_heads, block_size, spec.head_dim),
        dtype=getattr(torch, spec.dtype),
        device=device,
        pin_memory=pinned,
    )


def allocate_scales(
    spec: KVCacheSpec,
    num_blocks: int,
    block_size: int,
    device: torch.device,
    *,
    pinned: bool = False,
) -> Tensor | None:
    """Return unwritten memory for the scales of as many blocks, None if there are none.

    [num_layers, 2, num_blocks, num_kv_heads, block_size, 1] float32: copied as blocks are.
    """
    if not spec.is_quantized:
        return None
    scales = replace(spec, head_dim=1, dtype="float32")
    return allocate_blocks(scales, num_blocks, block_size, device, pinned=pinned)


class KVMemory(BlockMemory):
    """Keys and values of a group of layers: the pool's blocks, and host blocks to swap out to."""

    def __init__(
        self,
        spec: KVCacheSpec,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int,
        device: CacheDevice,
    ) -> None:
        self.spec = spec
        self.block_size = block_size
        host, pinned = torch.device("cpu"), device.pins_host_memory
        self.blocks = allocate_blocks(spec, num_blocks, block_size, device.torch_device)
        self.host_blocks = allocate_blocks(spec, num_host_blocks, block_size, host, pinned=pinned)
        scales = allocate_scales(spec, num_blocks, block_size, device.torch_device)
        host_scales = allocate_scales(spec, num_host_blocks, block_size, host, pinned=pinned)
        memories = [(self.blocks, self.host_blocks)]
        if scales is not None and host_scales is not None:
            memories.append((scales, host_scales))
        super().__init__(memories, device)
        self._layers = [
            KVLayer(keys, values, None if scales is None else _scales_of(scales[index]))
            for index, (keys, values) in enumerate(self.blocks)
        ]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all layers."""
        return self.spec.bytes_per_token * self.block_size

    def layer(self, index: int) -> KVLayer:
        """Return a layer's part of the pool, by its place in the group."""
        return self._layers[index]

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move the blocks in the order given; those that do not meet are moved together."""
        if self.spec.num_layers:
            super().transfer(transfers)


def _scales_of(scales: Tensor) -> KVScales:
    """Return a layer's scales. scales: [2, num_blocks, num_kv_heads, block_size, 1]."""
    keys, values = scales.squeeze(-1)
    return KVScales(keys, values)
