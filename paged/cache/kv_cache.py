"""KVCache: the tensors behind the block pool, allocated once, and the moves between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pagedrun.kernels.kv_layer import KVLayer
from pagedrun.kernels.kv_scales import KVScales
from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
from pagedrun.paged.cache.cache_device import CacheDevice


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What one token's keys and values look like in memory."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def is_quantized(self) -> bool:
        """Whether each head of each token has a scale of its own (see `KVScales`)."""
        return self.dtype in (torch.int8, torch.float8_e4m3fn)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, with their scales."""
        vectors = 2 * self.num_layers * self.num_kv_heads
        scales = torch.float32.itemsize if self.is_quantized else 0
        return vectors * (self.head_dim * self.dtype.itemsize + scales)

    def allocate(
        self, num_blocks: int, block_size: int, device: torch.device, *, pinned: bool = False
    ) -> Tensor:
        """Return unwritten memory for `num_blocks` blocks, page-locked if `pinned`.

        [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]: one layer's keys for one
        head and block lie together, which is what attention reads in one go. Not filled: what an
        unwritten slot holds must never matter, and the system only backs pages that are written.
        """
        return torch.empty(
            (self.num_layers, 2, num_blocks, self.num_kv_heads, block_size, self.head_dim),
            dtype=self.dtype,
            device=device,
            pin_memory=pinned,
        )

    def allocate_scales(
        self, num_blocks: int, block_size: int, device: torch.device, *, pinned: bool = False
    ) -> Tensor | None:
        """Return unwritten memory for the scales of as many blocks, None if there are none.

        [num_layers, 2, num_blocks, num_kv_heads, block_size, 1] float32: copied as blocks are.
        """
        if not self.is_quantized:
            return None
        scales = replace(self, head_dim=1, dtype=torch.float32)
        return scales.allocate(num_blocks, block_size, device, pinned=pinned)


class KVCache:
    """Keys and values of every layer: the pool's blocks, and host blocks to swap them out to."""

    def __init__(
        self,
        layout: KVLayout,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int,
        device: CacheDevice,
    ) -> None:
        self.layout = layout
        self.block_size = block_size
        host, pinned = torch.device("cpu"), device.pins_host_memory
        self.blocks = layout.allocate(num_blocks, block_size, device.torch_device)
        self.host_blocks = layout.allocate(num_host_blocks, block_size, host, pinned=pinned)
        scales = layout.allocate_scales(num_blocks, block_size, device.torch_device)
        host_scales = layout.allocate_scales(num_host_blocks, block_size, host, pinned=pinned)
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
        return self.layout.bytes_per_token * self.block_size

    def layer(self, index: int) -> KVLayer:
        """Return a layer's part of the pool."""
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
