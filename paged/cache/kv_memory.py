"""KVMemory: the tensors behind one block pool, allocated once, and the moves between them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pagedrun.kernels.kv_layer import KVLayer
from pagedrun.kernels.kv_scales import KVScales
from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
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


class KVMemory:
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
        # What moves when a block moves: in the pool, and on the host.
        self._memories = [(self.blocks, self.host_blocks)]
        if scales is not None and host_scales is not None:
            self._memories.append((scales, host_scales))
        self._staged: dict[int, tuple[Sequence[Tensor], int]] = {}
        self._num_staged = 0
        self._device = device
        self._kernels = device.kernels
        self._layers = [
            KVLayer(keys, values, None if scales is None else _scales_of(scales[index]))
            for index, (keys, values) in enumerate(self.blocks)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool with its scales, host blocks not counted."""
        return sum(memory.nbytes for memory, _ in self._memories)

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.blocks.shape[2]

    @property
    def num_host_blocks(self) -> int:
        """Blocks on the host to swap out to."""
        return self.host_blocks.shape[2]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all layers."""
        return self.spec.bytes_per_token * self.block_size

    def layer(self, index: int) -> KVLayer:
        """Return a layer's part of the pool, by its place in the group."""
        return self._layers[index]

    def shapes(self, num_blocks: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of what `read` returns for so many blocks."""
        pools = [pool for pool, _ in self._memories]
        return [((*p.shape[:2], num_blocks, *p.shape[3:]), p.dtype) for p in pools]

    def read(self, block_ids: Sequence[int]) -> list[Tensor]:
        """Return copies of some blocks on the host: keys and values and, if any, their scales.

        [num_layers, 2, len(block_ids), num_kv_heads, block_size, head_dim], scales [..., 1].
        Waits for what the device is computing.
        """
        chosen = torch.tensor(block_ids, device=self._device.torch_device)
        return [
            pool.view(torch.uint8).index_select(2, chosen).cpu().view(pool.dtype)
            for pool, _ in self._memories
        ]

    def stage(self, tensors: Sequence[Tensor], position: int) -> int:
        """Take a block that is not in the pool yet; return what a `LOAD` moves it by, once.

        tensors: as `read` returns them. position: the block's place in them.
        """
        self._num_staged += 1
        self._staged[self._num_staged] = (tensors, position)
        return self._num_staged

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move the blocks in the order given; those that do not meet are moved together."""
        if not self.spec.num_layers:
            return
        for run in _independent_runs(transfers):
            if run[0].kind is TransferKind.LOAD:
                self._load(run)
                continue
            sources = torch.tensor([each.source for each in run])
            targets = torch.tensor([each.target for each in run])
            for pool, host in self._memories:
                match run[0].kind:
                    case TransferKind.COPY:
                        self._kernels.copy_blocks(pool, sources, targets)
                    case TransferKind.SWAP_OUT:
                        with self._device.aside():
                            self._kernels.swap_blocks(pool, host, sources, targets)
                    case TransferKind.SWAP_IN:
                        with self._device.aside():
                            self._kernels.swap_blocks(host, pool, sources, targets)

    def _load(self, run: Sequence[BlockTransfer]) -> None:
        """Move staged blocks into the pool, those of one file together."""
        files: dict[int, tuple[Sequence[Tensor], list[int], list[int]]] = {}
        for each in run:
            tensors, position = self._staged.pop(each.source)
            _, positions, targets = files.setdefault(id(tensors), (tensors, [], []))
            positions.append(position)
            targets.append(each.target)
        place = self._device.torch_device
        for tensors, positions, targets in files.values():
            for (pool, _), tensor in zip(self._memories, tensors, strict=True):
                moved = tensor.view(torch.uint8).index_select(2, torch.tensor(positions))
                written = torch.tensor(targets, device=place)
                pool.view(torch.uint8).index_copy_(2, written, moved.to(place))


def _scales_of(scales: Tensor) -> KVScales:
    """Return a layer's scales. scales: [2, num_blocks, num_kv_heads, block_size, 1]."""
    keys, values = scales.squeeze(-1)
    return KVScales(keys, values)


def _independent_runs(transfers: Iterable[BlockTransfer]) -> Iterable[list[BlockTransfer]]:
    """Cut a list of transfers where the next one is of another kind, reads a block that the run
    writes, or writes one that it touches."""
    run: list[BlockTransfer] = []
    read: set[int] = set()
    written: set[int] = set()
    for each in transfers:
        # Only a copy has its sources and its targets in the same memory.
        meets = each.target in written or (
            each.kind is TransferKind.COPY and (each.source in written or each.target in read)
        )
        if run and (meets or each.kind is not run[0].kind):
            yield run
            run, read, written = [], set(), set()
        run.append(each)
        read.add(each.source)
        written.add(each.target)
    if run:
        yield run
