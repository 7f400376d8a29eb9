"""The ring of a device: every use finds its own bytes, however late its copies are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.kernels.stored_layers import ArraySpec, StoredLayer
from pagedrun.paged.models.streaming.device_ring import DeviceEntry, DeviceRing
from pagedrun.paged.models.streaming.packed_folder import PackedFolder
from pagedrun.paged.models.streaming.residency import PAGE_BYTES, Residency
from pagedrun.paged.models.streaming.weight_ring import EntryFile, RingEntry, WeightRing
from tests.support.stub_gpu import StubTransfers


class StreamedToDevice:
    """Entries of one repeated byte each, in the least memory of the device.

    on_host: bytes of the host, None for all entries.
    """

    def __init__(
        self, path: Path, sizes: Sequence[int], on_host: int | None = None, *, is_late: bool = True
    ) -> None:
        self.transfers = StubTransfers(is_late=is_late)
        sizes = [size * PAGE_BYTES for size in sizes]
        residency = Residency.within(sizes, Residency.least_bytes(sizes))
        host = Residency.within(sizes, sum(sizes) if on_host is None else on_host)
        assert residency is not None
        assert host is not None
        self.residency, self.host = residency, host
        assert residency.num_streamed == len(sizes)
        memory = self.transfers.memory(residency.ring_bytes)
        host_memory = self.transfers.page_locked(host.ring_bytes)
        folder = PackedFolder(path, {})
        self.entries: list[DeviceEntry] = []
        in_ring: list[RingEntry] = []
        for index, size in enumerate(sizes):
            array = np.full(size, index + 1, np.uint8)
            at, host_at = residency.places[index], host.places[index]
            assert at is not None
            entry = DeviceEntry(memory[at : at + size], array)
            if host_at is not None:
                folder.write(
                    str(index), [(StoredLayer(None, (ArraySpec("|u1", (size,)),)), [array])]
                )
                packed = folder.find(str(index))
                assert packed is not None
                entry.host = host_memory[host_at : host_at + size]
                entry.host_number = len(in_ring)
                in_ring.append(
                    RingEntry(
                        EntryFile(packed), entry.host, wait_until_free=entry.wait_until_copied
                    )
                )
            self.entries.append(entry)
        self.host_ring = WeightRing(in_ring, self._unexpected) if in_ring else None
        self.ring = DeviceRing(self.entries, self.transfers, self.host_ring)

    def use(self, number: int) -> None:
        self.ring.use(number)
        assert set(np.unique(self.entries[number].memory.numpy())) == {number + 1}

    def use_all(self) -> None:
        for number in range(len(self.entries)):
            self.use(number)

    def _unexpected(self, number: int) -> EntryFile:
        raise AssertionError("no file is damaged")


SIZES = st.lists(st.integers(1, 4), min_size=3, max_size=9)


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("keeps_all", [True, False])
@given(SIZES, st.lists(st.integers(0, 8), max_size=30))
@settings(max_examples=40, deadline=None)
def test_any_order_of_uses(
    tmp_path_factory: pytest.TempPathFactory,
    keeps_all: bool,
    is_late: bool,
    sizes: Sequence[int],
    uses: Sequence[int],
) -> None:
    """Host memory that cannot keep all is overwritten by the disk only once it has been copied."""
    least = Residency.least_bytes([size * PAGE_BYTES for size in sizes])
    folder = tmp_path_factory.mktemp("packed")
    streamed = StreamedToDevice(folder, sizes, None if keeps_all else least, is_late=is_late)
    for number in uses:
        if number < len(sizes):
            streamed.use(number)


def test_a_pass_copies_what_the_residency_says(tmp_path: Path) -> None:
    streamed = StreamedToDevice(tmp_path, [3] * 8)
    num_passes = 10
    for _ in range(num_passes):
        streamed.use_all()
    figures, residency = streamed.ring.figures, streamed.residency
    assert figures.num_bytes == streamed.transfers.num_bytes
    assert num_passes * residency.pass_bytes <= figures.num_bytes
    assert figures.num_bytes <= num_passes * residency.pass_bytes + residency.ring_bytes
    assert figures.wait_s == figures.read_s == 0.0, "all of it is on the host"


def test_copies_are_launched_ahead_of_their_use(tmp_path: Path) -> None:
    """One place is in use; each further one has the next entry of the pass."""
    streamed = StreamedToDevice(tmp_path, [1] * 6)
    assert streamed.residency.ring_bytes == 2 * PAGE_BYTES
    for number in (0, 1, 2, 3):
        streamed.use(number)
        assert streamed.transfers.num_copies == number + 2


def test_pinned_host_memory_is_read_once(tmp_path: Path) -> None:
    on_host = 5 * PAGE_BYTES
    streamed = StreamedToDevice(tmp_path, [1] * 8, on_host)
    num_passes, host = 6, streamed.host
    for _ in range(num_passes):
        streamed.use_all()
    assert 0 < host.num_streamed < 8
    assert streamed.transfers.locked_bytes == host.ring_bytes
    assert streamed.host_ring is not None
    read = streamed.host_ring.figures
    assert num_passes * host.pass_bytes <= read.num_bytes
    assert read.num_bytes <= num_passes * host.pass_bytes + host.ring_bytes
    assert streamed.ring.figures.num_bytes >= num_passes * 8 * PAGE_BYTES
