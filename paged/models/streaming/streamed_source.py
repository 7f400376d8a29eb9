"""StreamedSource: weights packed once on disk, of which some stay there between passes.

Loading has two phases. Entries that the folder lacks are built from the checkpoint as they would be
in memory, taken apart, written, and dropped again. Then sizes are known: each entry gets its place,
pinned or in the ring, and its layers are put together over it.
"""

import ctypes
import mmap
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.ops import GroupedLinear, Linear
from pagedrun.kernels.stored_layers import Bytes, Refilled, StoredLayer, put_together, take_apart
from pagedrun.paged.models.checkpoint.weight_source import (
    MakePart,
    ReadTensor,
    SideBySide,
    WeightSource,
)
from pagedrun.paged.models.streaming.device_ring import DeviceEntry, DeviceRing, Transfers
from pagedrun.paged.models.streaming.expert_pages import ExpertPages
from pagedrun.paged.models.streaming.packed_folder import PackedEntry, PackedFolder
from pagedrun.paged.models.streaming.residency import (
    PassSpeeds,
    Residency,
    StreamedWeights,
    too_little_memory,
)
from pagedrun.paged.models.streaming.weight_ring import (
    NUM_READERS,
    EntryFile,
    RingEntry,
    WeightRing,
    page_memory,
)
from pagedrun.paged.values.errors import EngineError, UsageError


class StreamedSource(WeightSource):
    """Weights of `source` within `num_bytes` of memory, packed in `folder`.

    num_bytes: of the device that computes. reading: opens the checkpoint again, to repair a damaged
    file during a run. transfers: copies to a device with memory of its own, None where the host
    computes; such entries are kept in a share of the free memory of the host, `host_bytes`.
    before_measuring: waits until kernels are compiled, before speeds are measured for the first
    time. Raises `UsageError` if the memory is too small, or the disk.
    """

    is_streamed = True

    def __init__(
        self,
        source: WeightSource,
        folder: PackedFolder,
        num_bytes: int,
        reading: Callable[[], AbstractContextManager[ReadTensor]],
        *,
        transfers: Transfers | None = None,
        host_bytes: int = 0,
        before_measuring: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            source.read,
            source.dtype,
            source.device,
            source.kernels,
            row_invariant=source.row_invariant,
            is_mapped=source.is_mapped,
            stored=source.stored,
        )
        self._source = source
        self._folder = folder
        self._num_bytes = num_bytes
        self._reading = reading
        self._transfers = transfers
        self._host_bytes = host_bytes
        self._before_measuring = before_measuring
        self._classes = (*source.kernels.LAYER_PARTS, SideBySide)

    def parts(self, makers: Sequence[tuple[str, MakePart]]) -> list[Any]:
        """Return the parts of a model, in the order of a pass."""
        entries = [self._packed(name, make) for name, make in makers]
        sizes = [each.num_bytes for each in entries]
        residency = Residency.within(sizes, self._num_bytes)
        if residency is None:
            raise too_little_memory(self._num_bytes, sizes)
        ring_memory = self._allocate(residency.ring_bytes)
        placed: list[_Placed] = []
        copies: list[Refilled] = []
        for maker, entry, place in zip(makers, entries, residency.places, strict=True):
            if place is None:
                memory = self._allocate(entry.num_bytes)
            else:
                memory = ring_memory[place : place + entry.num_bytes]
            placed.append(self._put_together(maker, EntryFile(entry), memory))
            if place is not None:
                copies = placed[-1].share(copies)
        pinned: list[_Placed] = []
        streamed: list[_Placed] = []
        for each, place in zip(placed, residency.places, strict=True):
            (pinned if place is None else streamed).append(each)
        with ThreadPoolExecutor(NUM_READERS) as readers:
            self._read_pinned(pinned, readers)
            speeds = self._folder.speeds() or self._measured(placed[0], sum(sizes), readers)
            ring, on_host = self._ring(streamed, readers)
        self.streamed = StreamedWeights(
            self._folder.path, residency, speeds, lambda: ring.figures, ring.begin_step, on_host
        )
        numbers = iter(range(len(streamed)))
        call_on_host = self.kernels.call_on_host
        return [
            each.part
            if place is None
            else StreamedPart(each, partial(call_on_host, partial(ring.use, next(numbers))))
            for each, place in zip(placed, residency.places, strict=True)
        ]

    def _allocate(self, num_bytes: int) -> Tensor:
        """Return memory of the device that computes, [num_bytes] uint8."""
        if self._transfers is not None:
            return self._transfers.memory(num_bytes)
        return torch.from_numpy(page_memory(num_bytes))

    def _read_pinned(self, pinned: Sequence["_Placed"], readers: ThreadPoolExecutor) -> None:
        """Read the entries that remain in the memory of the device that computes."""
        transfers = self._transfers
        if transfers is None:
            for each in pinned:
                self._read(each, each.memory.numpy(), readers)
                each.refill()
                for part in each.refilled:  # never read again
                    _release_pages(part.stored)
            return
        staging = page_memory(max((each.memory.nbytes for each in pinned), default=0))
        for each in pinned:
            host = staging[: each.memory.nbytes]
            self._read(each, host, readers)
            transfers.copy(host, each.memory).wait()

    def _ring(
        self, streamed: Sequence["_Placed"], readers: ThreadPoolExecutor
    ) -> "tuple[WeightRing | DeviceRing, Residency | None]":
        """Return the ring of streamed entries, and their residency in the memory of the host, None
        where the host computes."""
        transfers = self._transfers
        if transfers is None:
            entries = [
                RingEntry(each.file, each.memory.numpy(), each.refilled, pages=each.expert_pages)
                for each in streamed
            ]
            ring = self._host_ring(streamed, entries)
            for index, each in enumerate(streamed):
                if each.use is not None:
                    each.use.connect(ring, index)
            return ring, None
        on_host = Residency.on_host([each.memory.nbytes for each in streamed], self._host_bytes)
        ring_memory = transfers.page_locked(on_host.ring_bytes)
        copied: list[DeviceEntry] = []
        in_ring: list[_Placed] = []
        entries = []
        for each, place in zip(streamed, on_host.places, strict=True):
            size = each.memory.nbytes
            if place is None:
                copied.append(DeviceEntry(each.memory, transfers.page_locked(size)))
                self._read(each, copied[-1].host, readers)
                continue
            entry = DeviceEntry(each.memory, ring_memory[place : place + size], len(in_ring))
            copied.append(entry)
            in_ring.append(each)
            until = entry.wait_until_copied
            entries.append(RingEntry(each.file, entry.host, wait_until_free=until))
        host_ring = self._host_ring(in_ring, entries) if entries else None
        return DeviceRing(copied, transfers, host_ring), on_host

    def _host_ring(self, placed: Sequence["_Placed"], entries: Sequence[RingEntry]) -> WeightRing:
        return WeightRing(entries, lambda index: self._packed_again(*placed[index].maker))

    def _read(self, placed: "_Placed", memory: Bytes, readers: ThreadPoolExecutor) -> None:
        """Read an entry; it is packed again if its file is damaged."""
        if not placed.file.read(memory, readers):
            placed.file = self._packed_again(*placed.maker)
            placed.file.read(memory, readers)

    def _measured(
        self, first: "_Placed", num_bytes: int, readers: ThreadPoolExecutor
    ) -> PassSpeeds:
        """Measure reading and computing of the first entry, of `num_bytes` of all, and keep the
        speeds."""
        self._before_measuring()
        transfers, num_rows = self._transfers, _MEASURED_ROWS
        copied_per_s = None
        if transfers is None:
            memory = first.memory.numpy()
        else:
            memory, num_rows = transfers.page_locked(first.memory.nbytes), _MEASURED_DEVICE_ROWS
        self._read(first, memory, readers)
        bytes_per_s = _rate(memory.size, lambda: first.file.read(memory, readers))
        if transfers is not None:
            copied_per_s = _rate(memory.size, transfers.copy(memory, first.memory).wait)
        first.refill()
        token_s = _token_s(first.layers, self.dtype, self.device, num_rows)
        share = memory.size / num_bytes
        tokens_per_s = None if token_s is None else share / token_s
        speeds = PassSpeeds(bytes_per_s, tokens_per_s, copied_per_s)
        self._folder.keep_speeds(speeds)
        return speeds

    def _packed(self, name: str, make: MakePart) -> PackedEntry:
        """Return an entry, packed if it is missing."""
        entry = self._folder.find(name)
        if entry is not None:
            return entry
        with self._folder.locked():
            entry = self._folder.find(name)  # another process may have packed it meanwhile
            if entry is None:
                self._pack(name, make, self.read)
        return entry or self._found(name)

    def _pack(self, name: str, make: MakePart, read: ReadTensor) -> None:
        layers: list[tuple[StoredLayer, list[Bytes]]] = []
        used: list[Tensor] = []

        def pack(make_layer: Callable[[], Any]) -> Any:
            layer = make_layer()
            layers.append(take_apart(layer, self._classes))
            return layer

        def read_tensor(name: str) -> Tensor:
            used.append(read(name))
            return used[-1]

        make(self._source.packed_by(pack, read_tensor))
        self._folder.write(name, layers)
        if self.is_mapped:
            for tensor in used:
                _forget_pages(tensor)

    def _packed_again(self, name: str, make: MakePart) -> EntryFile:
        """Pack an entry whose file is damaged."""
        with self._folder.locked(), self._reading() as read:
            self._pack(name, make, read)
        return EntryFile(self._found(name))

    def _found(self, name: str) -> PackedEntry:
        entry = self._folder.find(name)
        if entry is None:
            raise EngineError(f"{self._folder.path} loses what is written to it; check the disk")
        return entry

    def _put_together(
        self, maker: tuple[str, MakePart], file: EntryFile, memory: Tensor
    ) -> "_Placed":
        layers = iter(zip(file.entry.layers, file.entry.arrays(memory), strict=True))
        refilled: list[Refilled] = []
        found: list[Linear | GroupedLinear] = []
        uses: list[ExpertUse] = []

        def expert_use(num_chosen: int) -> ExpertUse:
            uses.append(ExpertUse(num_chosen))
            return uses[-1]

        def restore(make_layer: Callable[[], Any]) -> Any:
            try:
                stored, arrays = next(layers)
                layer, parts = put_together(stored, arrays, self._classes)
            except (StopIteration, ValueError) as error:
                raise UsageError(
                    f"{file.entry.path} has other layers than this model; remove the folder "
                    f"{self._folder.path}, and the weights are packed again"
                ) from error
            found.extend(layer if isinstance(layer, tuple) else (layer,))
            refilled.extend(parts)
            return layer

        part = maker[1](self._source.packed_by(restore, self._source.read, expert_use))
        num_bytes = part.num_bytes - sum(each.num_bytes for each in found)
        use = uses[0] if uses else None
        return _Placed(maker, file, memory, part, found, refilled, num_bytes, use)


class ExpertUse:
    """Call of an MoE layer before its experts compute: reads those that are missing.

    num_chosen: experts of a token.
    """

    def __init__(self, num_chosen: int) -> None:
        self.num_chosen = num_chosen
        self._ring: weakref.ref[WeightRing] | None = None  # which keeps the layer alive
        self._index = 0

    def connect(self, ring: WeightRing, index: int) -> None:
        """Name the ring that reads the layer, and the layer's number there."""
        self._ring, self._index = weakref.ref(ring), index

    def __call__(self, starts: Tensor) -> None:
        """Wait for experts with rows; starts: see `ExpertRows`.

        Raises `EngineError` if they cannot be read.
        """
        ring = None if self._ring is None else self._ring()
        if ring is not None:
            ring.use_experts(self._index, starts.diff().nonzero().flatten().tolist())


@dataclass(slots=True)
class _Placed:
    """Part over its memory, [num_bytes] uint8, and its packed layers; num_bytes: of the rest.

    use: called before its experts compute, None without experts.
    """

    maker: tuple[str, MakePart]
    file: EntryFile
    memory: Tensor
    part: Any
    layers: Sequence[Linear | GroupedLinear]
    refilled: Sequence[Refilled]
    num_bytes: int
    use: ExpertUse | None = None

    @property
    def expert_pages(self) -> ExpertPages | None:
        """Pages of its experts, None without any."""
        if self.use is None:
            return None
        return ExpertPages.of(self.memory, self.layers, self.use.num_chosen)

    def refill(self) -> None:
        """Copy the weights just read to layers that compute on a copy."""
        for each in self.refilled:
            each.refill()

    def share(self, copies: Sequence[Refilled]) -> list[Refilled]:
        """Compute on the copies of other entries, which are not in use at the same time.

        Returns all copies, with those of layers that no other fits.
        """
        left, own = list(copies), []
        for each in self.refilled:
            other = next((one for one in left if each.share(one)), None)
            if other is None:
                own.append(each)
            else:
                left.remove(other)
        return [*copies, *own]


_MEASURED_BYTES = 2**30
_MEASURED_S = 1.0
_MEASURED_ROWS, _MEASURED_DEVICE_ROWS = 256, 2048


def _rate(num_bytes: int, move: Callable[[], object]) -> float:
    """Return the bytes per second of `move`, which moves `num_bytes`."""
    began, size = time.perf_counter(), 0
    while size < _MEASURED_BYTES and time.perf_counter() - began < _MEASURED_S:
        move()
        size += num_bytes
    return size / (time.perf_counter() - began)


def _token_s(
    layers: Sequence[Linear | GroupedLinear],
    dtype: torch.dtype,
    device: torch.device,
    num_rows: int,
) -> float | None:
    """Return the seconds of a token in these layers; None for experts."""
    seconds = 0.0
    for layer in layers:
        if hasattr(layer, "num_experts"):
            return None
        x = torch.ones(num_rows, layer.in_features, dtype=dtype, device=device)
        layer(x)[:1].cpu()  # compiled by now, but neither loaded nor cached
        began = time.perf_counter()
        layer(x)[:1].cpu()  # the host waits for a result
        seconds += time.perf_counter() - began
    return seconds / num_rows if seconds else None


class StreamedPart:
    """Layer or head of a model; `use` waits for its weights. num_bytes: without these."""

    is_packed = True

    def __init__(self, placed: _Placed, use: Callable[[], None]) -> None:
        self._part = placed.part
        self._use = use
        self.num_bytes = placed.num_bytes

    def __call__(self, *inputs: Any) -> Any:
        """Compute the part."""
        self._use()
        return self._part(*inputs)


_MADV_PAGEOUT = 21  # of Linux 5.4; an older one refuses it, and frees the pages when it must


def _release_pages(memory: Bytes) -> None:
    """Free the whole pages of memory from `page_memory`; they are zeros when they are read."""
    start = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (memory.ctypes.data + memory.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_int(mmap.MADV_DONTNEED)
        )


def _forget_pages(tensor: Tensor) -> None:
    """Take the pages of a mapped file from the memory of the process; they can be read again."""
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = tensor.data_ptr() + tensor.nbytes - start
    if size > 0:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_int(_MADV_PAGEOUT)
        )
