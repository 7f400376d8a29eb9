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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pagedrun.kernels.stored_layers import Bytes, Refilled
from pagedrun.paged.models.streaming.expert_pages import ExpertPages
from pagedrun.paged.models.streaming.packed_folder import PackedEntry
from pagedrun.paged.models.streaming.residency import PAGE_BYTES, ReadFigures
from pagedrun.paged.values.errors import EngineError

# An entry is read in as many parts at a time: a disk answers several as fast as one. A part is one
# call, since between two calls a thread has to get the interpreter's lock.
NUM_READERS = 4
LEAST_PART_BYTES = 2**20


class EntryFile:
    """Open file of a packed entry; the first read of all of it checks its checksum (`is_checked`).

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
        self.is_checked = False

    def read(self, memory: Bytes, readers: ThreadPoolExecutor | None = None) -> bool:
        """Fill `memory`, [num_bytes]; return False if the file is damaged.

        Raises `EngineError` for a file that changed, is cut or cannot be read.
        """
        self.read_ranges(memory, [range(self.entry.num_bytes)], readers)
        if not self.is_checked:
            self.is_checked = zlib.crc32(memory.data) == self.entry.crc32
        return self.is_checked

    def read_ranges(
        self, memory: Bytes, ranges: Iterable[range], readers: ThreadPoolExecutor | None = None
    ) -> None:
        """Fill ranges of whole pages of `memory`, [num_bytes].

        Raises `EngineError` for a file that changed, is cut or cannot be read.
        """
        size = max(self.entry.num_bytes // NUM_READERS, LEAST_PART_BYTES)
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        parts = [
            (start, min(start + size, each.stop))
            for each in ranges
            for start in range(each.start, each.stop, size)
        ]
        try:
            if self._state() != self._stamp:
                raise EngineError(
                    f"{self.entry.path} was changed while it was in use; run the same command "
                    "again: it packs the weights anew and continues with the remaining rows"
                )
            in_turn = map if readers is None else readers.map
            for _ in in_turn(lambda part: self._read_part(memory[: part[1]], part[0]), parts):
                pass
        except OSError as error:
            raise _unreadable(self.entry.path, error) from error

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


class RingOrder:
    """Entries of a ring in the order of a pass: their places, and those that are there.

    places: bytes of the ring that each entry takes. current: the entry in use.
    """

    def __init__(self, places: Sequence[range]) -> None:
        self._places = places
        self._is_there = [False] * len(places)
        self.current = 0

    def has(self, index: int) -> bool:
        """Return True if an entry is in its place."""
        return self._is_there[index]

    def put(self, index: int) -> None:
        """Note that an entry is in its place."""
        self._is_there[index] = True

    def next(self) -> int | None:
        """Return the first entry from the current one on that is missing, and then those of the
        next pass.

        None if all are there, or its place is that of an entry that is needed earlier.
        """
        count = len(self._places)
        needed: list[int] = []
        for step in range(count):
            index = (self.current + step) % count
            if not self._is_there[index]:
                is_free = not any(self._overlap(index, each) for each in needed)
                return index if is_free else None
            needed.append(index)
        return None

    def clear(self, index: int) -> list[int]:
        """Return the entries that were in the place of `index` and no longer are."""
        found = [
            other
            for other in range(len(self._places))
            if self._is_there[other] and self._overlap(index, other)
        ]
        for other in found:
            self._is_there[other] = False
        return found

    def _overlap(self, index: int, other: int) -> bool:
        first, second = self._places[index], self._places[other]
        return first.start < second.stop and second.start < first.stop


@dataclass(slots=True)
class RingEntry:
    """Streamed entry: its file, its place in memory, and parts of its layers to refill.

    wait_until_free: waits for a use of the memory that goes on behind `WeightRing.use`. pages: of
    its experts, None if all of it is always read. missing: experts that have not been read.
    """

    file: EntryFile
    memory: Bytes
    refilled: Sequence[Refilled] = ()
    wait_until_free: Callable[[], None] | None = None
    pages: ExpertPages | None = None
    missing: set[int] = field(default_factory=set)

    @property
    def place(self) -> range:
        """Addresses of its memory."""
        start = self.memory.ctypes.data
        return range(start, start + self.memory.size)

    def read(self, num_tokens: int | None, readers: ThreadPoolExecutor) -> tuple[bool, int]:
        """Read the entry for a step of `num_tokens`, None for any; of a small one, experts later.

        Returns whether the file is whole, and the bytes read. Raises `EngineError` as
        `EntryFile.read` does.
        """
        pages = self.pages if self.file.is_checked else None
        if pages is None or num_tokens is None or not pages.pays(num_tokens):
            self.missing = set()
            return self.file.read(self.memory, readers), self.memory.size
        self.file.read_ranges(self.memory, pages.rest, readers)
        self.missing = set(range(len(pages.experts)))
        return True, sum(map(len, pages.rest))


class WeightRing:
    """Streamed entries in the order of a pass.

    repair: packs an entry with a damaged file again and returns the new file.
    """

    def __init__(self, entries: Sequence[RingEntry], repair: Callable[[int], EntryFile]) -> None:
        self._state = _State(list(entries))
        self._repair = repair
        self._readers = ThreadPoolExecutor(NUM_READERS, "expert reader")
        self.figures = self._state.figures
        thread = threading.Thread(
            target=_read_ahead, args=(self._state,), name="weights", daemon=True
        )
        weakref.finalize(self, self._state.stop)
        weakref.finalize(thread, _end, self._state, weakref.ref(thread))
        thread.start()

    def begin_step(self, num_tokens: int) -> None:
        """Note the tokens of the step that uses entries from now on."""
        with self._state.changed:
            self._state.num_tokens = num_tokens

    def use_experts(self, index: int, experts: Iterable[int]) -> None:
        """Read those of the experts of the entry in use that are missing.

        Raises `EngineError` if they cannot be read.
        """
        state, entry = self._state, self._state.entries[index]
        wanted = entry.missing.intersection(experts)
        if entry.pages is None or not wanted:
            return
        ranges = [each for expert in sorted(wanted) for each in entry.pages.experts[expert]]
        began = time.perf_counter()
        entry.file.read_ranges(entry.memory, ranges, self._readers)
        seconds = time.perf_counter() - began
        entry.missing -= wanted
        with state.changed:
            state.figures.num_bytes += sum(map(len, ranges))
            state.figures.read_s += seconds
            state.figures.wait_s += seconds

    def has(self, index: int) -> bool:
        """Return True if an entry is in its place, so that `use` does not wait for it."""
        with self._state.changed:
            return self._state.order.has(index)

    def use(self, index: int) -> None:
        """Wait until an entry is in its place; the use of the one before has ended.

        Raises `EngineError` if it cannot be read.
        """
        state = self._state
        with state.changed:
            if state.order.current != index:
                state.order.current = index
                state.changed.notify_all()
            began = time.perf_counter()
            while not state.order.has(index):
                if state.error is not None:
                    raise state.error
                if state.damaged is not None:
                    state.entries[state.damaged].file = self._repair(state.damaged)
                    state.damaged = None
                    state.changed.notify_all()
                state.changed.wait()
            state.figures.wait_s += time.perf_counter() - began
            needs_refill = state.needs_refill[index]
            state.needs_refill[index] = False
        for part in state.entries[index].refilled:
            if needs_refill or not part.is_filled:
                part.refill()


class _State:
    """State shared with the reading thread, which does not keep the ring alive.

    damaged: the entry that was read last, if its file must be repaired.
    """

    def __init__(self, entries: list[RingEntry]) -> None:
        self.entries = entries
        self.order = RingOrder([each.place for each in entries])
        self.needs_refill = [False] * len(entries)
        self.damaged: int | None = None
        self.num_tokens: int | None = None  # of the step that uses entries
        self.is_stopped = False
        self.error: EngineError | None = None
        self.changed = threading.Condition()
        self.figures = ReadFigures()

    def stop(self) -> None:
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()

    def next_entry(self) -> int | None:
        """Return the next entry to read; None if there is none, or no place for it."""
        if self.error is not None or self.damaged is not None:
            return None
        return self.order.next()


def _end(state: _State, reference: "weakref.ref[threading.Thread]") -> None:
    """Stop a reading thread that is there when the interpreter ends, and wait for it: one that
    still reads then can abort the process.

    Never waits while garbage is collected, which happens in any thread, with any lock held.
    """
    state.stop()
    if (thread := reference()) is not None:
        thread.join()


def _read_ahead(state: _State) -> None:
    """Read entries until the ring is stopped."""
    with ThreadPoolExecutor(NUM_READERS, "reader") as readers:
        while True:
            with state.changed:
                while (index := state.next_entry()) is None:
                    if state.is_stopped:
                        return
                    state.changed.wait()
                if state.is_stopped:
                    return
                replaced = [state.entries[each] for each in state.order.clear(index)]
                entry, num_tokens = state.entries[index], state.num_tokens
            for each in replaced:
                if each.wait_until_free is not None:
                    each.wait_until_free()
            began = time.perf_counter()
            try:
                is_whole, num_bytes = entry.read(num_tokens, readers)
            except EngineError as error:
                with state.changed:
                    state.error = error
                    state.changed.notify_all()
                continue
            with state.changed:
                if is_whole:
                    state.order.put(index)
                else:
                    state.damaged = index
                state.needs_refill[index] = is_whole
                state.figures.num_bytes += num_bytes
                state.figures.num_entries += 1
                state.figures.read_s += time.perf_counter() - began
                state.changed.notify_all()
