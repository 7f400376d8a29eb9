"""Memory of the host and of devices, and the part of it that a KV pool may take."""

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pagedrun.kernels.environment.cgroup import ControlGroup, control_groups
from pagedrun.paged.models.streaming.residency import Residency

# The rest of the free memory is for activations, the page cache and other processes.
POOL_SHARE_OF_FREE = 0.8
# Weights that take more of the free memory leave too little for a pool, and are streamed instead.
MOST_WEIGHTS = 0.8  # of the free memory of a host
STREAMED_SHARE = 0.5  # of the free memory, for weights; the pool of many rows has the rest


class _Files(NamedTuple):
    """Files of a control group, and the line of memory.stat with the reclaimable bytes."""

    limit: str
    usage: str
    droppable: str


_FILES_V2 = _Files("memory.max", "memory.current", "inactive_file")
_FILES_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory available to this process, in bytes: the lesser of the host's and the container's."""

    total: int
    available: int

    @classmethod
    def read(cls, meminfo: Path = Path("/proc/meminfo")) -> "HostMemory":
        """Read the memory of the host and the limits of the control groups of this process."""
        fields = {}
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) * 1024
        total, available = fields["MemTotal"], fields["MemAvailable"]
        for limit, used in _group_limits():
            total = min(total, limit)
            available = min(available, max(limit - used, 0))
        return cls(total, available)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of the memory that holds the pool, of the device or the host.

    `available` is the most that a pool can take, `pool` its size by default. Measured `activations`
    of a step are excluded from both. A pool that `is_filled` takes its share whatever the requests
    need. `decode_states`, `graphs`: left for decoding steps, see `DecodeMemory`.
    """

    total: int
    available: int
    pool: int
    activations: int | None = None
    is_filled: bool = False
    decode_states: int = 0
    graphs: int = 0

    def leaving(self, decode_states: int, graphs: int) -> "MemoryBudget":
        """Return a budget with a smaller default pool; an explicit pool size is not affected."""
        pool = self.pool - decode_states - graphs
        return replace(self, pool=pool, decode_states=decode_states, graphs=graphs)

    @classmethod
    def of_host(cls, taken: int = 0) -> "MemoryBudget":
        """Return the budget of the host's memory, less `taken` bytes that are about to be used."""
        memory = HostMemory.read()
        available = max(memory.available - taken, 0)
        return cls(memory.total, available, int(available * POOL_SHARE_OF_FREE))

    @classmethod
    def of_device(
        cls, *, total: int, free: int, activations: int, utilization: float
    ) -> "MemoryBudget":
        """Return the budget of a device's own memory after the weights are loaded.

        free: unused bytes of its `total`; memory of other processes counts as used. activations:
        bytes of the largest step. utilization: the share of `total`, 0 to 1, that may be filled. It
        is filled, so that the next run can have the same memory, and its graphs.
        """
        available = max(free - activations, 0)
        limit = max(int(total * utilization) - (total - free) - activations, 0)
        return cls(total, available, min(limit, available), activations, is_filled=True)


def memory_for_weights(
    asked: int | str,
    sizes: Sequence[int],
    available: int | None = None,
    mapped: int = 0,
    most: float = MOST_WEIGHTS,
) -> int | None:
    """Return the bytes for packed weights, None to keep all of them in memory.

    asked: by the user; "auto" decides by the memory that is free. sizes: see `Residency`.
    available: free bytes, None to read them. mapped: bytes that need no memory, since they are read
    in mapped files as they are used. most: share of the free memory that weights may take.
    """
    if isinstance(asked, str):
        free = HostMemory.read().available if available is None else available
        if sum(sizes) - mapped <= most * free:
            return None
        return max(int(STREAMED_SHARE * free), Residency.least_bytes(sizes))
    return None if asked >= sum(sizes) else asked


def _group_limits() -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use that cannot be dropped) of every group that has a limit."""
    for group in control_groups("memory"):
        names = _FILES_V2 if group.version == 2 else _FILES_V1
        limit, used = group.read_int(names.limit), group.read_int(names.usage)
        if limit is None or used is None:
            continue
        yield limit, max(used - _droppable(group, names.droppable), 0)


def _droppable(group: ControlGroup, name: str) -> int:
    """Return the bytes of file cache that the kernel drops on demand; 0 if it does not say."""
    for line in (group.read("memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0


def peak_resident_bytes() -> int:
    """Return the peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
