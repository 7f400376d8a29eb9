"""BlockMemory: tensors whose blocks move together, in a pool and on the host."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pagedrun.paged.cache.block_transfer import BlockTransfer, TransferKind
from pagedrun.paged.cache.cache_device import CacheDevice


class BlockMemory:
    """Pairs of tensors, one in the pool and one on the host to swap out to.

    All are [num_layers, planes, num_blocks, ...], the host's with blocks of its own: what moves
    when a block moves is what they have of it.
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
        """Return shape and dtype of what `read` returns for so many blocks."""
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
