"""WeightRing: packed weights that a thread reads ahead of the pass, into slots of fixed places.

The model calls `use` before it computes with an entry. That ends the use of the entry before, whose
place may be overwritten from then on, and waits until the entry has been read. The reading thread
takes entries in the order of a pass, as far ahead as places are free: those of the entry in use and
of entries that are read and needed earlier are not. An entry that is still in its place is not read
again, whatever order entries are used in.

Reads go past the page cache where the file system allows it (O_DIRECT): weights larger than memory
would only evict what other programs have there.
"""

import errno
import mmap
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

from pagedrun.kernels.stored_layers import Bytes, Refilled
from pagedrun.paged.models.streaming.packed_folder import PackedEntry
from pagedrun.paged.models.streaming.residency import PAGE_BYTES, ReadFigures
from pagedrun.paged.values.errors import EngineError

# An entry is read in as many parts at a time: a disk answers several as fast as one. A part is one
# call, since between two calls a thread has to get the interpreter's lock.
NUM_READERS = 4
LEAST_PART_BYTES = 2**20


class EntryFile:
    """Open file of a packed entry; the first read checks its checksum.

    Raises `EngineError` if it cannot be opened.
    """

    def __init__(self, entry: PackedEntry) -> None:
        self.entry = entry
        try:
            self._descriptor, self._is_direct = _opened(entry.path)
        except OSError as error:
            raise _unreadable(entry.path, error) from error
        weakref.finalize(self, os.close, self._descriptor)
        self._stamp = self._state()
        self._is_checked = False

    def read(self, memory: Bytes, readers: ThreadPoolExecutor | None = None) -> bool:
        """Fill `memory`, [num_bytes]; return False if the file is damaged.

        Raises `EngineError` for a file that changed, is cut or cannot be read.
        """
        size = max(self.entry.num_bytes // NUM_READERS, LEAST_PART_BYTES)
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        starts = range(0, self.entry.num_bytes, size)
        try:
            if self._state() != self._stamp:
                raise EngineError(
                    f"{self.entry.path} was changed while it was in use; run the same command "
                    "again: it packs the weights anew and continues with the remaining rows"
                )
            parts = map if readers is None else readers.map
            for _ in parts(lambda start: self._read_part(memory[: start + size], start), starts):
                pass
        except OSError as error:
            raise _unreadable(self.entry.path, error) from error
        if not self._is_checked:
            self._is_checked = zlib.crc32(memory.data) == self.entry.crc32
        return self._is_checked

    def _read_part(self, memory: Bytes, start: int) -> None:
        """Fill memory from byte `start` to its end."""
        end = memory.size
        while start < end:
            at = self.entry.data_start + start
            count = os.preadv(self._descriptor, [memory[start:end].data], at)
            if not count:
                raise OSError(errno.EIO, "it ends too early")
            if not self._is_direct:
                os.posix_fadvise(self._descriptor, at, count, os.POSIX_FADV_DONTNEED)
            start += count

    def _state(self) -> tuple[int, int]:
        state = os.fstat(self._descriptor)
        return state.st_size, state.st_mtime_ns


def _opened(path: Path) -> tuple[int, bool]:
    """Return the descriptor of a file, and whether its reads are direct."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without direct reads
            raise
    return os.open(path, flags), False


def _unreadable(path: Path, error: OSError) -> EngineError:
    return EngineError(
        f"{path}: the packed weights cannot be read ({error.strerror}); check the disk, then run "
        "the same command again: it continues with the remaining rows"
    )


def page_memory(num_bytes: int) -> Bytes:
    """Return zeroed memory that begins at a page, in large pages if the system has them."""
    if not num_bytes:
        return np.empty(0, np.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


@dataclass(slots=True)
class RingEntry:
    """Streamed entry: its file, its place in memory, and parts of its layers to refill."""

    file: EntryFile
    memory: Bytes
    refilled: Sequence[Refilled] = ()

    def overlaps(self, other: "RingEntry") -> bool:
        """Return True if both have bytes of memory in common."""
        start, others = self.memory.ctypes.data, other.memory.ctypes.data
        return start < others + other.memory.size and others < start + self.memory.size


class WeightRing:
    """Streamed entries in the order of a pass.

    repair: packs an entry with a damaged file again and returns the new file.
    """

    def __init__(self, entries: Sequence[RingEntry], repair: Callable[[int], EntryFile]) -> None:
        self._state = _State(list(entries))
        self._repair = repair
        self.figures = self._state.figures
        thread = threading.Thread(
            target=_read_ahead, args=(self._state,), name="weights", daemon=True
        )
        weakref.finalize(self, self._state.stop)
        thread.start()

    def use(self, index: int) -> None:
        """Wait until an entry is in its place; the use of the one before has ended.

        Raises `EngineError` if it cannot be read.
        """
        state = self._state
        with state.changed:
            if state.current != index:
                state.current = index
                state.changed.notify_all()
            began = time.perf_counter()
            while state.status[index] is not _Status.READY:
                if state.error is not None:
                    raise state.error
                if state.status[index] is _Status.DAMAGED:
                    state.entries[index].file = self._repair(index)
                    state.status[index] = _Status.ABSENT
                    state.changed.notify_all()
                state.changed.wait()
            state.figures.wait_s += time.perf_counter() - began
            needs_refill = state.needs_refill[index]
            state.needs_refill[index] = False
        if needs_refill:
            for part in state.entries[index].refilled:
                part.refill()


class _Status(Enum):
    ABSENT = "absent"
    READY = "ready"
    DAMAGED = "damaged"


@dataclass(slots=True)
class _State:
    """State shared with the reading thread, which does not keep the ring alive."""

    entries: list[RingEntry]
    current: int = 0
    is_stopped: bool = False
    error: EngineError | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    figures: ReadFigures = field(default_factory=ReadFigures)
    status: list[_Status] = field(init=False)
    needs_refill: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.status = [_Status.ABSENT] * len(self.entries)
        self.needs_refill = [False] * len(self.entries)

    def stop(self) -> None:
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()

    def next_entry(self) -> int | None:
        """Return the next entry to read, None if its place is not free, or all are read."""
        needed: list[RingEntry] = []
        for index in self._from_current():
            entry = self.entries[index]
            if self.status[index] is _Status.READY:
                needed.append(entry)
                continue
            is_free = not any(entry.overlaps(each) for each in needed)
            return index if is_free and self.status[index] is _Status.ABSENT else None
        return None

    def _from_current(self) -> Iterator[int]:
        count = len(self.entries)
        return ((self.current + step) % count for step in range(count))

    def begin(self, index: int) -> None:
        """Mark entries as absent whose places an entry overwrites."""
        for other, entry in enumerate(self.entries):
            if entry.overlaps(self.entries[index]) and self.status[other] is _Status.READY:
                self.status[other] = _Status.ABSENT


def _read_ahead(state: _State) -> None:
    """Read entries until the ring is stopped."""
    with ThreadPoolExecutor(NUM_READERS, "reader") as readers:
        while True:
            with state.changed:
                while (index := state.next_entry()) is None or state.error is not None:
                    if state.is_stopped:
                        return
                    state.changed.wait()
                if state.is_stopped:
                    return
                state.begin(index)
                entry = state.entries[index]
            began = time.perf_counter()
            try:
                is_whole = entry.file.read(entry.memory, readers)
            except EngineError as error:
                with state.changed:
                    state.error = error
                    state.changed.notify_all()
                continue
            with state.changed:
                state.status[index] = _Status.READY if is_whole else _Status.DAMAGED
                state.needs_refill[index] = is_whole
                state.figures.num_bytes += entry.memory.size
                state.figures.num_entries += 1
                state.figures.read_s += time.perf_counter() - began
                state.changed.notify_all()
