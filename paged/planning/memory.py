"""How much memory there is, and how many blocks of it the KV pool gets."""

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pagedrun.kernels.environment.cgroup import ControlGroup, control_groups
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.option_names import option

# What the pool leaves of the free memory: activations, the page cache, and whoever else is there.
POOL_SHARE_OF_FREE = 0.8


class _Files(NamedTuple):
    """Where a control group says what: two files, and a line of memory.stat."""

    limit: str
    usage: str
    droppable: str


_FILES_V2 = _Files("memory.max", "memory.current", "inactive_file")
_FILES_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes that this process may count on: the host's or the container's, whichever is less."""

    total: int
    available: int

    @classmethod
    def read(cls, meminfo: Path = Path("/proc/meminfo")) -> "HostMemory":
        """Read the host's figures and the limits of the control groups around this process."""
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
    """Bytes of the memory that the pool lies in, the device's or the host's.

    `available` is the most that a pool can take, `pool` what it takes without being told. What a
    step needs for a moment is kept out of both where it was measured (`activations`).
    """

    total: int
    available: int
    pool: int
    activations: int | None = None

    @classmethod
    def of_host(cls, taken: int = 0) -> "MemoryBudget":
        """Return what the host's memory allows now, or will when `taken` bytes more are in use."""
        memory = HostMemory.read()
        available = max(memory.available - taken, 0)
        return cls(memory.total, available, int(available * POOL_SHARE_OF_FREE))


def _group_limits() -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use that cannot be dropped) of every group that has a limit."""
    for group in control_groups("memory"):
        names = _FILES_V2 if group.version == 2 else _FILES_V1
        limit, used = group.read_int(names.limit), group.read_int(names.usage)
        if limit is None or used is None:
            continue
        yield limit, max(used - _droppable(group, names.droppable), 0)


def _droppable(group: ControlGroup, name: str) -> int:
    """Return the bytes of file cache that the kernel drops when asked; 0 if it does not say."""
    for line in (group.read("memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0


def peak_resident_bytes() -> int:
    """Return the most memory that this process has had in use so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def most_blocks_in_use(max_num_seqs: int, max_model_len: int, block_size: int) -> int:
    """Return how many blocks a run can ever use: every sequence that runs at full length, and as
    much for the prefix that is kept for the next one."""
    return (max_num_seqs + 1) * -(-max_model_len // block_size)


def choose_num_blocks(
    *,
    bytes_per_block: int,
    num_needed: int,
    num_blocks: int | None,
    kv_cache_memory_bytes: int | None,
    budget: MemoryBudget,
) -> int:
    """Return the size of the pool in blocks.

    `num_blocks` decides if given, then `kv_cache_memory_bytes`; otherwise the pool takes what the
    requests need (`num_needed`), up to what the `budget` has for it. Raises `UsageError` when
    not even one block comes out, or more is asked for than is available.
    """
    available = budget.available
    if num_blocks is not None:
        if num_blocks < 1:
            raise UsageError(f"{option('num_blocks')} is {num_blocks}; it must be at least 1")
        if num_blocks * bytes_per_block > available:
            raise UsageError(
                f"{option('num_blocks')} {num_blocks} takes {num_blocks * bytes_per_block} bytes, "
                f"but {available} are free; pass at most {available // bytes_per_block}"
            )
        return num_blocks
    if kv_cache_memory_bytes is not None:
        count = kv_cache_memory_bytes // bytes_per_block
        if count < 1:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} {kv_cache_memory_bytes} holds no block: one "
                f"takes {bytes_per_block} bytes; give more, or a smaller {option('block_size')}"
            )
        if kv_cache_memory_bytes > available:
            raise UsageError(
                f"{option('kv_cache_memory_bytes')} is {kv_cache_memory_bytes}, but {available} "
                "bytes are free; pass less"
            )
        return count
    count = min(num_needed, budget.pool // bytes_per_block)
    if count < 1:
        raise UsageError(
            f"no memory for the KV pool: {budget.pool} bytes are free for it and one block takes "
            f"{bytes_per_block}; free some memory or use a smaller {option('block_size')}"
        )
    return count
