"""How much memory there is, from made-up /proc and cgroup files, and the pool's size."""

from pathlib import Path

import pytest

from pagedrun.kernels.environment import cgroup
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.planning.memory import (
    POOL_SHARE_OF_FREE,
    HostMemory,
    MemoryBudget,
    peak_resident_bytes,
)
from pagedrun.paged.planning.pool_sizing import PoolDemand, PoolSplit, choose_sizes
from pagedrun.paged.values.errors import UsageError

MIB = 2**20
MEMINFO = "MemTotal:        8192 kB\nMemFree:          100 kB\nMemAvailable:    4096 kB\n"
HOST = HostMemory(total=8 * MIB, available=4 * MIB)


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO + "HugePages_Total:       0\n")
    return path


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tree of cgroup v2, of which this process is in pod/app."""
    return mounted(tmp_path, monkeypatch, "0::/pod/app\n")


@pytest.fixture
def v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty memory tree of cgroup v1, of which this process is in pod/app."""
    return mounted(tmp_path, monkeypatch, "4:memory:/pod/app\n0::/\n") / "memory"


def mounted(folder: Path, monkeypatch: pytest.MonkeyPatch, membership: str) -> Path:
    root = folder / "cgroup"
    (root / "memory").mkdir(parents=True)
    (folder / "membership").write_text(membership)
    monkeypatch.setattr(cgroup, "ROOT", root)
    monkeypatch.setattr(cgroup, "MEMBERSHIP", folder / "membership")
    return root


def group_v2(folder: Path, limit: str, current: int, inactive_file: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\nfile 7\n")
    return folder


def group_v1(folder: Path, limit: int, usage: int, inactive_file: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"cache 9\ntotal_inactive_file {inactive_file}\n")
    return folder


def test_a_host_without_a_container(meminfo: Path, v2: Path) -> None:
    assert HostMemory.read(meminfo) == HOST


def test_a_host_without_control_groups(
    meminfo: Path, v2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_v2(v2, str(MIB), current=0, inactive_file=0)
    monkeypatch.setattr(cgroup, "MEMBERSHIP", v2 / "no such file")
    assert HostMemory.read(meminfo) == HOST


@pytest.mark.parametrize("place", ["pod/app", "pod", ""])
def test_cgroup_v2(meminfo: Path, v2: Path, place: str) -> None:
    """What is used counts without the file cache, which the kernel drops when asked."""
    group_v2(v2 / place, str(3 * MIB), current=2 * MIB, inactive_file=MIB)
    assert HostMemory.read(meminfo) == HostMemory(3 * MIB, 2 * MIB)


def test_cgroup_v2_without_a_limit(meminfo: Path, v2: Path) -> None:
    group_v2(v2 / "pod/app", "max", current=2 * MIB, inactive_file=MIB)
    assert HostMemory.read(meminfo) == HOST


@pytest.mark.parametrize("place", ["pod/app", "pod", ""])
def test_cgroup_v1(meminfo: Path, v1: Path, place: str) -> None:
    group_v1(v1 / place, 3 * MIB, usage=MIB, inactive_file=MIB // 2)
    assert HostMemory.read(meminfo) == HostMemory(3 * MIB, 2 * MIB + MIB // 2)


def test_cgroup_v1_without_a_limit(meminfo: Path, v1: Path) -> None:
    group_v1(v1 / "pod/app", 9_223_372_036_854_771_712, usage=MIB, inactive_file=0)
    assert HostMemory.read(meminfo) == HOST


def test_the_group_with_the_least_left_decides(meminfo: Path, v2: Path) -> None:
    """The pod may have less left than this group, though its limit is larger."""
    group_v2(v2 / "pod/app", str(2 * MIB), current=MIB // 2, inactive_file=0)
    group_v2(v2 / "pod", str(4 * MIB), current=3 * MIB, inactive_file=0)
    group_v2(v2, "max", current=7 * MIB, inactive_file=0)
    assert HostMemory.read(meminfo) == HostMemory(2 * MIB, MIB)


def test_the_group_of_a_neighbour_does_not_count(meminfo: Path, v2: Path) -> None:
    group_v2(v2 / "pod/other", str(MIB), current=MIB, inactive_file=0)
    assert HostMemory.read(meminfo) == HOST


def test_the_host_may_have_less_than_the_container_allows(meminfo: Path, v2: Path) -> None:
    group_v2(v2, str(64 * MIB), current=MIB, inactive_file=0)
    assert HostMemory.read(meminfo) == HOST


def test_a_container_over_its_limit_has_nothing_left(meminfo: Path, v2: Path) -> None:
    group_v2(v2, str(MIB), current=2 * MIB, inactive_file=0)
    assert HostMemory.read(meminfo) == HostMemory(MIB, 0)


def test_more_droppable_than_used_is_nothing_used(meminfo: Path, v2: Path) -> None:
    """The three files are not read at one instant."""
    group_v2(v2, str(2 * MIB), current=MIB, inactive_file=3 * MIB)
    assert HostMemory.read(meminfo) == HostMemory(2 * MIB, 2 * MIB)


@pytest.mark.parametrize("missing", ["memory.max", "memory.current"])
def test_a_group_that_does_not_say_limit_or_use_is_no_limit(
    meminfo: Path, v2: Path, missing: str
) -> None:
    (group_v2(v2, str(MIB), current=0, inactive_file=0) / missing).unlink()
    assert HostMemory.read(meminfo) == HOST


@pytest.mark.parametrize(
    "stat", [None, "", "inactive_file", "inactive_file many", "one two three\n\nanon 4"]
)
def test_without_a_sound_memory_stat_nothing_is_droppable(
    meminfo: Path, v2: Path, stat: str | None
) -> None:
    folder = group_v2(v2 / "pod/app", str(3 * MIB), current=2 * MIB, inactive_file=MIB)
    (folder / "memory.stat").unlink()
    if stat is not None:
        (folder / "memory.stat").write_text(stat)
    assert HostMemory.read(meminfo) == HostMemory(3 * MIB, MIB)


def test_a_strange_line_in_memory_stat_hides_no_other(meminfo: Path, v2: Path) -> None:
    folder = group_v2(v2 / "pod/app", str(3 * MIB), current=2 * MIB, inactive_file=MIB)
    (folder / "memory.stat").write_text(f"a b c\n\ninactive_file {MIB}\n")
    assert HostMemory.read(meminfo) == HostMemory(3 * MIB, 2 * MIB)


def test_this_machine() -> None:
    memory = HostMemory.read()
    assert 0 <= memory.available <= memory.total
    assert MIB < peak_resident_bytes() < 2**50


def choose(
    *,
    num_needed: int = 50,
    num_blocks: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    available: int = 10_000,
) -> int:
    """The size of one pool whose blocks take 128 bytes."""
    spec = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=2, dtype="float32")
    split = PoolSplit(
        [spec], 8, max_num_seqs=4, max_num_batched_tokens=16, demand=PoolDemand(longest=10)
    )
    assert split.block_bytes == 128
    [size] = choose_sizes(
        split,
        num_needed=num_needed,
        num_blocks=num_blocks,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        budget=MemoryBudget(20_000, available, int(available * POOL_SHARE_OF_FREE)),
    )
    return size


def test_the_number_of_blocks_decides_over_all_else() -> None:
    assert choose(num_blocks=7, kv_cache_memory_bytes=100_000) == 7


def test_the_bytes_decide_over_the_need() -> None:
    assert choose(kv_cache_memory_bytes=10 * 128 - 1) == 9
    assert choose(kv_cache_memory_bytes=128) == 1


def test_more_than_is_free_is_refused() -> None:
    assert choose(num_blocks=78) == choose(kv_cache_memory_bytes=10_000) == 78
    with pytest.raises(UsageError, match=r"num_blocks 79 takes 10112 bytes.* at most 78"):
        choose(num_blocks=79)
    with pytest.raises(UsageError, match=r"kv_cache_memory_bytes is 10001, but 10000"):
        choose(kv_cache_memory_bytes=10_001)


def test_the_pool_takes_what_is_needed_up_to_its_share() -> None:
    assert choose(num_needed=50) == 50
    assert choose(num_needed=5_000) == int(10_000 * POOL_SHARE_OF_FREE) // 128 == 62


def test_no_room_for_a_single_block() -> None:
    with pytest.raises(UsageError, match=r"num_blocks is 0; it must be at least 1"):
        choose(num_blocks=0)
    with pytest.raises(UsageError, match=r"127 is less than one block.* 128 bytes"):
        choose(kv_cache_memory_bytes=127)
    with pytest.raises(UsageError, match=r"127 bytes are free for it and one block takes 128"):
        choose(available=159)
    assert choose(available=160) == 1


def test_what_others_hold_of_a_device_counts_as_used() -> None:
    budget = MemoryBudget.of_device(total=1000, free=700, activations=50, utilization=0.9)
    # Nine tenths of all, less the 300 in use and a step.
    assert (budget.available, budget.pool) == (650, 550)
    full = MemoryBudget.of_device(total=1000, free=80, activations=50, utilization=0.9)
    assert (full.available, full.pool) == (30, 0)
