"""StreamedSource: weights packed once on disk, of which some stay there between passes.

Loading has two phases. Entries that the folder lacks are built from the checkpoint as they would be
in memory, taken apart, written, and dropped again. Then sizes are known: each entry gets its place,
pinned or in the ring, and its layers are put together over it.
"""

import ctypes
import mmap
import time
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
from pagedrun.paged.values.errors import EngineError


class StreamedSource(WeightSource):
    """Weights of `source` within `num_bytes` of memory, packed in `folder`.

    reading: opens the checkpoint again, to repair a damaged file during a run. before_measuring:
    waits until kernels are compiled, before speeds are measured for the first time. Raises
    `UsageError` if the memory is too small, or the disk.
    """

    is_streamed = True

    def __init__(
        self,
        source: WeightSource,
        folder: PackedFolder,
        num_bytes: int,
        reading: Callable[[], AbstractContextManager[ReadTensor]],
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
        self._before_measuring = before_measuring
        self._classes = (*source.kernels.LAYER_PARTS, SideBySide)

    def parts(self, makers: Sequence[tuple[str, MakePart]]) -> list[Any]:
        """Return the parts of a model, in the order of a pass."""
        entries = [self._packed(name, make) for name, make in makers]
        sizes = [each.num_bytes for each in entries]
        residency = Residency.within(sizes, self._num_bytes)
        if residency is None:
            raise too_little_memory(self._num_bytes, sizes)
        ring_memory = page_memory(residency.ring_bytes)
        placed: list[_Placed] = []
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for maker, entry, place in zip(makers, entries, residency.places, strict=True):
                file = EntryFile(entry)
                if place is None:
                    memory = page_memory(entry.num_bytes)
                    if not file.read(memory, readers):
                        file = self._packed_again(*maker)
                        file.read(memory, readers)
                else:
                    memory = ring_memory[place : place + entry.num_bytes]
                placed.append(self._put_together(maker, file, memory))
                if place is None:
                    placed[-1].refill()
            speeds = self._folder.speeds() or self._measured(placed[0], sum(sizes), readers)
        streamed = [
            each for each, at in zip(placed, residency.places, strict=True) if at is not None
        ]
        ring = WeightRing(
            [RingEntry(each.file, each.memory, each.refilled) for each in streamed],
            lambda index: self._packed_again(*streamed[index].maker),
        )
        self.streamed = StreamedWeights(self._folder.path, residency, speeds, ring.figures)
        numbers = iter(range(len(streamed)))
        call_on_host = self.kernels.call_on_host
        return [
            each.part
            if place is None
            else StreamedPart(each, partial(call_on_host, partial(ring.use, next(numbers))))
            for each, place in zip(placed, residency.places, strict=True)
        ]

    def _measured(
        self, first: "_Placed", num_bytes: int, readers: ThreadPoolExecutor
    ) -> PassSpeeds:
        """Measure reading and computing of the first entry, of `num_bytes` of all, and keep the
        speeds."""
        self._before_measuring()
        file, memory = first.file, first.memory
        if not file.read(memory, readers):
            file = self._packed_again(*first.maker)
        began, size = time.perf_counter(), 0
        while size < _MEASURED_BYTES and time.perf_counter() - began < _MEASURED_S:
            file.read(memory, readers)
            size += memory.size
        bytes_per_s = size / (time.perf_counter() - began)
        first.refill()
        token_s = _token_s(first.layers, self.dtype)
        share = memory.size / num_bytes
        speeds = PassSpeeds(bytes_per_s, None if token_s is None else share / token_s)
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
        self, maker: tuple[str, MakePart], file: EntryFile, memory: Bytes
    ) -> "_Placed":
        layers = iter(zip(file.entry.layers, file.entry.arrays(memory), strict=True))
        refilled: list[Refilled] = []
        found: list[Linear | GroupedLinear] = []

        def restore(make_layer: Callable[[], Any]) -> Any:
            stored, arrays = next(layers)
            layer, parts = put_together(stored, arrays, self._classes)
            found.extend(layer if isinstance(layer, tuple) else (layer,))
            refilled.extend(parts)
            return layer

        part = maker[1](self._source.packed_by(restore, self._source.read))
        num_bytes = part.num_bytes - sum(each.num_bytes for each in found)
        return _Placed(maker, file, memory, part, found, refilled, num_bytes)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Part over its memory, and its packed layers. num_bytes: of other weights."""

    maker: tuple[str, MakePart]
    file: EntryFile
    memory: Bytes
    part: Any
    layers: Sequence[Linear | GroupedLinear]
    refilled: Sequence[Refilled]
    num_bytes: int

    def refill(self) -> None:
        """Copy the weights just read to layers that compute on a copy."""
        for each in self.refilled:
            each.refill()


_MEASURED_BYTES = 2**30
_MEASURED_S = 1.0
_MEASURED_ROWS = 256


def _token_s(layers: Sequence[Linear | GroupedLinear], dtype: torch.dtype) -> float | None:
    """Return the seconds of a token in these layers; None for experts."""
    seconds = 0.0
    for layer in layers:
        if hasattr(layer, "num_experts"):
            return None
        x = torch.ones(_MEASURED_ROWS, layer.in_features, dtype=dtype)
        layer(x)  # compiled by now, but neither loaded nor cached
        began = time.perf_counter()
        layer(x)
        seconds += time.perf_counter() - began
    return seconds / _MEASURED_ROWS if seconds else None


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


def _forget_pages(tensor: Tensor) -> None:
    """Take the pages of a mapped file from the memory of the process; they can be read again."""
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = tensor.data_ptr() + tensor.nbytes - start
    if size > 0:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_int(_MADV_PAGEOUT)
        )
