"""KVCache: tensors of keys, values and recurrent states of all groups of layers.

Allocated once, in the pool and on the host to swap to. `BlockMemory` moves their blocks.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, KVScales
from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.cache.cache_spec import (
    KVCacheSpec,
    KVLayerIndex,
    PoolShape,
    StateArray,
    StateLayerIndex,
    StateSpec,
)
from pagedrun.paged.cache.swap_memory import Allocate, of_host, page_locked


class CacheDevice(Protocol):
    """Device of a cache, with kernels that move blocks."""

    @property
    def torch_device(self) -> torch.device:
        """Device of the pool."""
        ...

    @property
    def kernels(self) -> Backend:
        """Kernels that copy blocks."""
        ...

    @property
    def pins_host_memory(self) -> bool:
        """True if host blocks are page-locked for access by the device."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Launch the operations of the context in order, concurrently with computation."""
        ...


class BlockMemory:
    """Pairs of tensors, in the pool and on the host for swapping.

    All are [num_layers, planes, num_blocks, ...] with separate block ids on the host; a transfer
    moves a block of every tensor.
    """

    def __init__(self, memories: Sequence[tuple[Tensor, Tensor]], device: CacheDevice) -> None:
        self._memories = memories
        self._staged: dict[int, tuple[Sequence[Tensor], int]] = {}
        self._num_staged = 0
        self._device = device
        self._kernels = device.kernels

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool, host blocks not counted."""
        return sum(memory.nbytes for memory, _ in self._memories)

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self._memories[0][0].shape[2]

    @property
    def num_host_blocks(self) -> int:
        """Blocks on the host to swap out to."""
        return self._memories[0][1].shape[2]

    def shapes(self, num_blocks: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return shapes and dtypes of `read` for `num_blocks` blocks."""
        pools = [pool for pool, _ in self._memories]
        return [((*p.shape[:2], num_blocks, *p.shape[3:]), p.dtype) for p in pools]

    def read(self, block_ids: Sequence[int]) -> list[Tensor]:
        """Return copies of some blocks on the host, of each tensor: blocks on its third axis.

        Waits for what the device is computing.
        """
        chosen = torch.tensor(block_ids, device=self._device.torch_device)
        return [
            pool.view(torch.uint8).index_select(2, chosen).cpu().view(pool.dtype)
            for pool, _ in self._memories
        ]

    def stage(self, tensors: Sequence[Tensor], position: int) -> int:
        """Stage a block for the pool; return the source of its `LOAD`, valid once.

        tensors: as `read` returns them. position: index of the block in them.
        """
        self._num_staged += 1
        self._staged[self._num_staged] = (tensors, position)
        return self._num_staged

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move the blocks in order; independent ones are moved together."""
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
        device = self._device.torch_device
        for tensors, positions, targets in files.values():
            for (pool, _), tensor in zip(self._memories, tensors, strict=True):
                moved = tensor.view(torch.uint8).index_select(2, torch.tensor(positions))
                written = torch.tensor(targets, device=device)
                pool.view(torch.uint8).index_copy_(2, written, moved.to(device))


def _independent_runs(transfers: Iterable[BlockTransfer]) -> Iterable[list[BlockTransfer]]:
    """Split transfers before one that is of another kind, reads a block that the run writes, or
    writes one that it reads or writes."""
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


def allocate_blocks(
    spec: KVCacheSpec, num_blocks: int, block_size: int, allocate: Allocate
) -> Tensor:
    """Return unwritten memory for `num_blocks` blocks.

    [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]: the keys of one layer, head and
    block are contiguous, since attention reads them together. Not filled: unwritten slots must
    never be used, and the system allocates only written pages.
    """
    shape = (spec.num_stored_layers, 2, num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
    return allocate(shape, getattr(torch, spec.dtype))


def allocate_scales(
    spec: KVCacheSpec, num_blocks: int, block_size: int, allocate: Allocate
) -> Tensor | None:
    """Return unwritten memory for the scales of as many blocks, None if there are none.

    [num_layers, 2, num_blocks, num_kv_heads, block_size, 1] float32: copied as blocks are.
    """
    if not spec.is_quantized:
        return None
    return allocate_blocks(
        replace(spec, head_dim=1, dtype="float32"), num_blocks, block_size, allocate
    )


def _of_pool(device: CacheDevice) -> Allocate:
    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device.torch_device)

    return allocate


def _to_swap(device: CacheDevice) -> Allocate:
    return page_locked if device.pins_host_memory else of_host


class KVMemory(BlockMemory):
    """Keys and values of a group of layers: the pool's blocks, and host blocks to swap out to."""

    def __init__(
        self,
        spec: KVCacheSpec,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int,
        device: CacheDevice,
        to_swap: Allocate | None = None,
    ) -> None:
        """to_swap: allocates the host blocks, None for memory that the device can access."""
        self.spec = spec
        self.block_size = block_size
        of_pool, to_swap = _of_pool(device), to_swap or _to_swap(device)
        self.blocks = allocate_blocks(spec, num_blocks, block_size, of_pool)
        self.host_blocks = allocate_blocks(spec, num_host_blocks, block_size, to_swap)
        scales = allocate_scales(spec, num_blocks, block_size, of_pool)
        host_scales = allocate_scales(spec, num_host_blocks, block_size, to_swap)
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
        """Return a layer's part of the pool, by its index in the group."""
        return self._layers[0 if self.spec.is_transient else index]

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move the blocks in order; independent ones are moved together."""
        if self.spec.num_layers:
            super().transfer(transfers)


def _scales_of(scales: Tensor) -> KVScales:
    """Return a layer's scales. scales: [2, num_blocks, num_kv_heads, block_size, 1]."""
    keys, values = scales.squeeze(-1)
    return KVScales(keys, values)


class StateCache(BlockMemory):
    """Recurrent states: slots of a pool, and host slots for swapping; a slot moves as a block.

    specs: one for each recurrent layer, all equal. Slots are not initialized: `StateInputs` mark
    sequences that begin with zeros. Raises `ValueError` for layers whose states differ.
    """

    def __init__(
        self,
        specs: Sequence[StateSpec],
        num_slots: int,
        num_host_slots: int,
        device: CacheDevice,
        to_swap: Allocate | None = None,
    ) -> None:
        """to_swap: see `KVMemory`."""
        if len(set(specs)) != 1:
            raise ValueError("recurrent layers whose states differ are not supported")
        of_pool, to_swap = _of_pool(device), to_swap or _to_swap(device)

        def allocate(array: StateArray, count: int, of: Allocate) -> Tensor:
            return of((len(specs), 1, count, *array.shape), getattr(torch, array.dtype))

        pools = [
            (allocate(array, num_slots, of_pool), allocate(array, num_host_slots, to_swap))
            for array in specs[0].arrays
        ]
        super().__init__(pools, device)
        self._layers = [tuple(pool[layer, 0] for pool, _ in pools) for layer in range(len(specs))]

    @property
    def num_slots(self) -> tuple[int, int]:
        """Slots of the pool, and those on the host."""
        return self.num_blocks, self.num_host_blocks

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of the states of a sequence in all layers."""
        return self.num_bytes // self.num_blocks

    def layer(self, index: int) -> tuple[Tensor, ...]:
        """Return the arrays of a recurrent layer, [num_slots, *shape], in its spec's order."""
        return self._layers[index]


class OpaqueStates:
    """Slots of opaque caches of Transformers, at most `bytes_per_slot` each; none on the host.

    Transformers allocates their memory as sequences grow.
    """

    def __init__(self, num_slots: int, bytes_per_slot: int) -> None:
        self.num_slots = (num_slots, 0)
        self.bytes_per_slot = bytes_per_slot
        self._objects: dict[int, object] = {}

    @property
    def num_bytes(self) -> int:
        """Maximum bytes of all slots."""
        return self.num_slots[0] * self.bytes_per_slot

    def take(self, read_slot: int, write_slot: int) -> object:
        """Return the mutable state that a chunk continues from: the object of a slot, or a copy if
        it is written to another slot."""
        if read_slot == write_slot:
            return self._objects.pop(read_slot)
        return deepcopy(self._objects[read_slot])

    def put(self, write_slot: int, state: object) -> None:
        """Store the state after a chunk."""
        self._objects[write_slot] = state

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Do nothing: preempted sequences are recomputed."""
        assert not list(transfers), "there is nowhere to move an object to"


class KVCache:
    """KV pools of all groups of layers, with the same block size, and recurrent states.

    Block ids belong to the pool of their group. `states`, of recurrent layers or opaque caches,
    have the group index after the last.
    """

    def __init__(
        self, groups: Sequence[KVMemory], states: StateCache | OpaqueStates | None = None
    ) -> None:
        self.block_size = groups[0].block_size
        self.groups = tuple(groups)
        self.states = states

    @property
    def num_bytes(self) -> int:
        """Bytes of all pools with their scales, host blocks and states not counted."""
        return sum(each.num_bytes for each in self.groups)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block of each group."""
        return sum(each.bytes_per_block for each in self.groups)

    @property
    def specs(self) -> tuple[KVCacheSpec, ...]:
        """Cache spec of each group of layers."""
        return tuple(each.spec for each in self.groups)

    @property
    def is_transient(self) -> bool:
        """True if keys and values are kept while a layer computes a step only."""
        return any(each.spec.is_transient for each in self.groups)

    @property
    def shapes(self) -> tuple[PoolShape, ...]:
        """The pool of each group."""
        return PoolShape.of_all(self.specs, [each.num_blocks for each in self.groups])

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Storage dtype of each group."""
        return tuple(each.blocks.dtype for each in self.groups)

    def layer(self, index: KVLayerIndex) -> KVLayer:
        """Return a layer's part of its group's pool."""
        return self.groups[index.group].layer(index.layer)

    def state(self, index: StateLayerIndex) -> tuple[Tensor, ...]:
        """Return the arrays of a recurrent layer, [num_slots, *shape], in its spec's order."""
        assert isinstance(self.states, StateCache), "made without states of layers"
        return self.states.layer(index.layer)

    def transfer(self, transfers: Iterable[BlockTransfer]) -> None:
        """Move blocks, and slots of states, those of each group in the order given."""
        transfers = list(transfers)
        memories = self.groups if self.states is None else (*self.groups, self.states)
        for group, memory in enumerate(memories):
            memory.transfer(each for each in transfers if each.group == group)
