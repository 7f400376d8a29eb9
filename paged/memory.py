"""How much memory there is, and how many blocks of it the KV pool gets."""

import resource
from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.errors import UsageError

# What the pool leaves of the free memory: activations, the page cache, and whoever else is there.
POOL_SHARE_OF_FREE = 0.8

_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes that this process may count on: the host's or the container's, whichever is less."""

    total: int
    available: int

    @classmethod
    def read(
        cls, meminfo: Path = Path("/proc/meminfo"), cgroup: Path | None = None
    ) -> "HostMemory":
        """Read the host's figures and the container's limit (cgroup v2 or v1)."""
        fields = {}
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) * 1024
        total, available = fields["MemTotal"], fields["MemAvailable"]
        container = _container_limit(cgroup)
        if container is not None:
            limit, used = container
            total = min(total, limit)
            available = min(available, max(limit - used, 0))
        return cls(total, available)


def _container_limit(root: Path | None) -> tuple[int, int] | None:
    """Return (limit, bytes in use that cannot be dropped), or `None` where there is no limit."""
    v2, v1 = root or _CGROUP_V2, root or _CGROUP_V1
    for limit_file, usage_file, stat_file, droppable in (
        (v2 / "memory.max", v2 / "memory.current", v2 / "memory.stat", "inactive_file"),
        (
            v1 / "memory.limit_in_bytes",
            v1 / "memory.usage_in_bytes",
            v1 / "memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            limit = int(limit_file.read_text())  # "max" is no number: no limit
            used = int(usage_file.read_text())
            stat = dict(line.split() for line in stat_file.read_text().splitlines())
        except (OSError, ValueError):
            continue
        return limit, max(used - int(stat.get(droppable, 0)), 0)
    return None


def peak_resident_bytes() -> int:
    """Return the most memory that this process has had in use so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def choose_num_blocks(
    *,
    bytes_per_block: int,
    num_needed: int,
    num_blocks: int | None,
    kv_cache_memory_bytes: int | None,
    available: int,
) -> int:
    """Return the size of the pool in blocks.

    `num_blocks` decides if given, then `kv_cache_memory_bytes`; otherwise the pool takes what the
    requests need (`num_needed`), up to a share of the `available` bytes. Raises `UsageError` when
    not even one block comes out.
    """
    if num_blocks is not None:
        if num_blocks < 1:
            raise UsageError(f"--num-blocks is {num_blocks}; it must be at least 1")
        return num_blocks
    if kv_cache_memory_bytes is not None:
        count = kv_cache_memory_bytes // bytes_per_block
        if count < 1:
            raise UsageError(
                f"--kv-cache-memory-bytes {kv_cache_memory_bytes} holds no block: one takes "
                f"{bytes_per_block} bytes; give more, or a smaller --block-size"
            )
        return count
    count = min(num_needed, int(available * POOL_SHARE_OF_FREE) // bytes_per_block)
    if count < 1:
        raise UsageError(
            f"no memory for the KV pool: {available} bytes are free and one block takes "
            f"{bytes_per_block}; free some memory or use a smaller --block-size"
        )
    return count
