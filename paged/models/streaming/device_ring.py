"""DeviceRing: packed weights copied to a device during each pass, from the memory of the host.

Copies run beside computations, on a stream of their own. Before the host launches the computation
of an entry, it launches the copies of the entries behind it, as far ahead as the ring has places;
each begins when everything launched before it has been computed, the last use of its place
included. The computation of an entry waits for its copy on the device: the host never does.

Where the host has no memory for all entries, some pass through a `WeightRing` of its own, from disk
to host to device. A copy ahead of its use is launched only if the entry has been read by then, so
that the host waits for the disk as late as possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pagedrun.kernels.stored_layers import Bytes
from pagedrun.paged.models.streaming.residency import ReadFigures
from pagedrun.paged.models.streaming.weight_ring import RingOrder, WeightRing


class Copy(Protocol):
    """Copy from the host to a device, which may not have ended."""

    def precede(self) -> None:
        """Let computations that are launched from now on begin behind the copy."""

    def wait(self) -> None:
        """Wait on the host until the copy has ended."""


class Transfers(Protocol):
    """Copies from the host to a device with memory of its own."""

    def page_locked(self, num_bytes: int) -> Bytes:
        """Return host memory that begins at a page, locked in place if the system permits."""

    def memory(self, num_bytes: int) -> Tensor:
        """Return memory of the device, [num_bytes] uint8."""

    def copy(self, source: Bytes, target: Tensor) -> Copy:
        """Launch a copy behind all computations launched so far."""


@dataclass(slots=True, eq=False)
class DeviceEntry:
    """Entry that is streamed to a device.

    memory: its place there, [num_bytes] uint8. host: its bytes, [num_bytes]. host_number: its
    number in the ring of the host, None if it remains in host memory. copy: the last one.
    """

    memory: Tensor
    host: Bytes
    host_number: int | None = None
    copy: Copy | None = None

    @property
    def place(self) -> range:
        """Addresses of its memory."""
        start = self.memory.data_ptr()
        return range(start, start + self.memory.nbytes)

    def wait_until_copied(self) -> None:
        """Wait on the host until its host memory can be overwritten."""
        if self.copy is not None:
            self.copy.wait()


class DeviceRing:
    """Entries streamed to a device, in the order of a pass.

    host: the ring of those that do not remain in host memory, None if all do.
    """

    def __init__(
        self, entries: Sequence[DeviceEntry], transfers: Transfers, host: WeightRing | None
    ) -> None:
        self._entries = entries
        self._transfers = transfers
        self._host = host
        self._order = RingOrder([each.place for each in entries])
        self._copied = ReadFigures()

    @property
    def figures(self) -> ReadFigures:
        """Bytes and entries copied so far; seconds of reading and of waiting for the disk."""
        copied = self._copied
        if self._host is None:
            return copied
        read = self._host.figures
        return ReadFigures(copied.num_bytes, copied.num_entries, read.read_s, read.wait_s)

    def begin_step(self, num_tokens: int) -> None:
        """Do nothing: experts are copied together, since the host does not know the chosen ones."""

    def use(self, index: int) -> None:
        """Let computations launched from now on find an entry in its place; those of the entry
        before have been launched.

        Raises `EngineError` if it cannot be read.
        """
        self._order.current = index
        if not self._order.has(index):
            self._copy(index)
        while (ahead := self._order.next()) is not None and self._is_on_host(ahead):
            self._copy(ahead)
        copy = self._entries[index].copy
        assert copy is not None, "launched above or before"
        copy.precede()

    def _is_on_host(self, index: int) -> bool:
        number = self._entries[index].host_number
        return self._host is None or number is None or self._host.has(number)

    def _copy(self, index: int) -> None:
        entry = self._entries[index]
        if self._host is not None and entry.host_number is not None:
            self._host.use(entry.host_number)
        self._order.clear(index)
        entry.copy = self._transfers.copy(entry.host, entry.memory)
        self._order.put(index)
        self._copied.num_bytes += entry.memory.nbytes
        self._copied.num_entries += 1
