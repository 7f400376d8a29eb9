"""The ring: every use finds its own bytes, whatever the order, speed and state of the disk."""

import ctypes
import errno
import gc
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.kernels.stored_layers import ArraySpec, StoredLayer
from pagedrun.paged.models.streaming.expert_pages import ExpertPages
from pagedrun.paged.models.streaming.packed_folder import PackedFolder
from pagedrun.paged.models.streaming.residency import PAGE_BYTES, Residency
from pagedrun.paged.models.streaming.weight_ring import (
    EntryFile,
    RingEntry,
    RingOrder,
    WeightRing,
    page_memory,
)
from pagedrun.paged.values.errors import EngineError


class Streamed:
    """Entries of one repeated byte each, and their ring."""

    def __init__(
        self, folder: PackedFolder, sizes: Sequence[int], num_bytes: int | None = None
    ) -> None:
        self.folder = folder
        self._sizes = sizes
        for index in range(len(sizes)):
            self.write(index)
        least = Residency.least_bytes([size * PAGE_BYTES for size in sizes])
        residency = Residency.within(
            [size * PAGE_BYTES for size in sizes], least if num_bytes is None else num_bytes
        )
        assert residency is not None
        self.residency = residency
        memory = page_memory(residency.ring_bytes)
        self.names, self.entries = [], []
        for index, place in enumerate(residency.places):
            if place is not None:
                self.names.append(index)
                part = memory[place : place + sizes[index] * PAGE_BYTES]
                self.entries.append(RingEntry(self.open(index), part))
        self.ring = WeightRing(self.entries, self._repaired)

    def write(self, index: int) -> None:
        array = np.full(self._sizes[index] * PAGE_BYTES, index + 1, np.uint8)
        spec = ArraySpec("|u1", array.shape)
        self.folder.write(str(index), [(StoredLayer(None, (spec,)), [array])])

    def open(self, index: int) -> EntryFile:
        entry = self.folder.find(str(index))
        assert entry is not None
        return EntryFile(entry)

    def use(self, number: int) -> None:
        self.ring.use(number)
        assert set(np.unique(self.entries[number].memory)) == {self.names[number] + 1}

    def use_all(self, first: int = 0) -> None:
        for number in range(first, len(self.entries)):
            self.use(number)

    def _repaired(self, number: int) -> EntryFile:
        self.write(self.names[number])
        return self.open(self.names[number])


def test_an_entry_waits_for_the_place_of_one_that_is_needed_earlier() -> None:
    """The first and the last of three entries have one place."""
    order = RingOrder([range(2), range(2, 4), range(2)])
    for index in (0, 1):
        assert order.next() == index
        order.put(index)
    assert order.next() is None
    order.current = 1
    assert order.next() == 2
    assert order.clear(2) == [0]


SIZES = st.lists(st.integers(1, 4), min_size=3, max_size=9)


@given(SIZES, st.lists(st.integers(0, 8), max_size=30))
@settings(max_examples=40, deadline=None)
def test_any_order_of_uses(
    tmp_path_factory: pytest.TempPathFactory, sizes: Sequence[int], uses: Sequence[int]
) -> None:
    streamed = Streamed(PackedFolder(tmp_path_factory.mktemp("packed"), {}), sizes)
    for number in uses:
        if number < len(streamed.entries):
            streamed.use(number)


def test_a_pass_reads_what_the_residency_says(tmp_path: Path) -> None:
    streamed = Streamed(PackedFolder(tmp_path, {}), [3] * 8, 17 * PAGE_BYTES)
    num_passes = 10
    for _ in range(num_passes):
        for number in range(len(streamed.entries)):
            streamed.use(number)
    figures, residency = streamed.ring.figures, streamed.residency
    ahead = residency.ring_bytes
    assert num_passes * residency.pass_bytes <= figures.num_bytes
    assert figures.num_bytes <= num_passes * residency.pass_bytes + ahead


def test_experts_are_read_when_they_are_chosen(tmp_path: Path) -> None:
    """Of a small step the rest is read ahead, into a place that has the experts of another."""
    streamed = Streamed(PackedFolder(tmp_path, {}), [4] * 6)
    rest, *experts = (range(PAGE_BYTES * page, PAGE_BYTES * (page + 1)) for page in range(4))
    streamed.use_all()  # the first read of a file is of all of it
    for entry in streamed.entries:
        entry.pages = ExpertPages(tuple((each,) for each in experts), (rest,), num_chosen=1)
    streamed.ring.begin_step(1)
    for _ in range(2):
        for number, entry in enumerate(streamed.entries):
            streamed.ring.use(number)
            streamed.ring.use_experts(number, [0, 2])
            for part in (rest, experts[0], experts[2]):
                held = np.unique(entry.memory[part.start : part.stop])
                assert held.tolist() == [streamed.names[number] + 1]
    assert entry.missing == {1}


def slowed(monkeypatch: pytest.MonkeyPatch, read: Callable[[int], None]) -> None:
    """Call `read` with the number of bytes of each read, before it."""
    preadv = os.preadv

    def slow(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        read(sum(map(len, buffers)))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", slow)


def test_entries_are_read_before_they_are_used(tmp_path: Path) -> None:
    """As many as there are slots, beside the one in use: the next ones of the pass."""
    streamed = Streamed(PackedFolder(tmp_path, {}), [1] * 6, 3 * PAGE_BYTES)
    figures = streamed.ring.figures
    for number in (0, 1, 2, 3):
        streamed.use(number)
        until = time.monotonic() + 20
        while figures.num_entries < number + 3 and time.monotonic() < until:
            time.sleep(0.001)
        assert figures.num_entries == number + 3


def test_waiting_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed(monkeypatch, lambda num_bytes: time.sleep(0.03))
    streamed = Streamed(PackedFolder(tmp_path, {}), [1] * 6, 3 * PAGE_BYTES)
    for number in [*range(6), *range(6)]:
        streamed.use(number)
    assert streamed.ring.figures.wait_s > 0.2


def test_a_damaged_file_is_packed_again(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    streamed = Streamed(folder, [1] * 6)
    path = folder.path / "5.packed"  # not read yet
    data = bytearray(path.read_bytes())
    data[PAGE_BYTES] ^= 1
    stamp = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    for number in range(6):
        streamed.use(number)
    assert folder.find("5") is not None


def test_a_file_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    streamed = Streamed(folder, [1] * 6)
    entry = folder.find("2")
    assert entry is not None
    entry.path.unlink()
    with pytest.raises(EngineError, match=r"2\.packed: .* \(No such file or directory\); check"):
        EntryFile(entry)
    streamed.use_all()  # open files are read on


def test_a_file_that_changes_is_one_sentence(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    streamed = Streamed(folder, [1] * 6)
    for number in range(6):
        streamed.use(number)
    (folder.path / "4.packed").write_bytes(bytes(2 * PAGE_BYTES))
    with pytest.raises(EngineError, match="was changed while it was in use; run the same command"):
        streamed.use_all()


def test_a_file_that_ends_early_is_one_sentence(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, {})
    folder.write("0", [])
    streamed = Streamed(folder, [1] * 6)
    streamed.entries[5].file._stamp = (PAGE_BYTES, 0)
    streamed.entries[5].file._state = lambda: (PAGE_BYTES, 0)  # type: ignore[method-assign]
    os.truncate(folder.path / "5.packed", PAGE_BYTES)
    with pytest.raises(EngineError, match=r"cannot be read \(it ends too early\); check the disk"):
        streamed.use_all()


def test_a_disk_that_fails_is_one_sentence_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = Streamed(PackedFolder(tmp_path, {}), [1] * 6)

    def fail(num_bytes: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for number in range(2):
        streamed.use(number)
    slowed(monkeypatch, fail)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"\(Input/output error\); check the disk, then run"):
            streamed.use_all(2)


def test_the_thread_ends_with_the_ring(tmp_path: Path) -> None:
    streamed = Streamed(PackedFolder(tmp_path, {}), [1] * 6)
    [thread] = [each for each in threading.enumerate() if each.name == "weights"][-1:]
    del streamed
    gc.collect()  # the test's object is in a circle with its ring
    thread.join(10)
    assert not thread.is_alive()


def test_a_ring_is_freed_while_its_thread_waits(tmp_path: Path) -> None:
    """Garbage is collected in any thread, also in one with the lock that the reader waits for."""
    streamed = Streamed(PackedFolder(tmp_path, {}), [1] * 6)
    [thread] = [each for each in threading.enumerate() if each.name == "weights"][-1:]
    changed = streamed.ring._state.changed
    with changed:
        del streamed
        gc.collect()
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()


# What is registered first runs last: behind the end of the threads.
AT_EXIT = """
import atexit, sys, threading
atexit.register(lambda: print([each.name for each in threading.enumerate()].count("weights")))
import time
from pathlib import Path
from tests.models.streaming.test_weight_ring import PackedFolder, RingEntry, Streamed
read = RingEntry.read
RingEntry.read = lambda *given: (read(*given), time.sleep(0.5))[0]
streamed = Streamed(PackedFolder(Path(sys.argv[1]), {}), [1] * 6)
streamed.use(0)
"""


def test_the_thread_ends_before_the_interpreter(tmp_path: Path) -> None:
    """One that reads while the interpreter ends can abort the process."""
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path)]
    assert (
        subprocess.check_output(
            command, text=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}
        )
        == "0\n"
    )


def test_other_files_stay_in_the_page_cache(tmp_path: Path) -> None:
    """Direct reads do not fill the page cache with weights."""
    other = tmp_path / "other"
    other.write_bytes(bytes(300 * PAGE_BYTES))
    streamed = Streamed(PackedFolder(tmp_path, {}), [200] * 6)
    if not streamed.entries[0].file._is_direct:
        pytest.skip("this file system has no direct reads")
    for number in [*range(6), *range(6)]:
        streamed.use(number)
    cached = [cached_pages(path) for path in streamed.folder.path.glob("*.packed")]
    assert sum(cached) < 0.1 * 6 * 200
    assert cached_pages(other) == 300


def cached_pages(path: Path) -> int:
    """Return the number of pages of a file that are in the page cache."""
    with path.open("rb") as file:
        both = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(file.fileno(), 0, prot=both, flags=mmap.MAP_PRIVATE)
    size = len(mapped)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    found = (ctypes.c_ubyte * (-(-size // PAGE_BYTES)))()
    ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found)
    return sum(each & 1 for each in found)
