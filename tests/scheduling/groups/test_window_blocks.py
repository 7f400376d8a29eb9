"""How many blocks a group with a window holds: what the windows need and one a sequence."""

import random

import pytest

from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.planning.pool_sizing import PoolDemand, PoolSplit
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from tests.support.drive import Drive, random_drive

SPECS = KVCacheSpec(1, 1, 1, "float32"), KVCacheSpec(5, 1, 1, "float32", window=9)
PLENTY = 2**40


class Optimist(OutputLengthPredictor):
    """Lets everybody in for whom there is room now."""

    def allows(self, *_: object) -> bool:
        return True


def windowed(seed: int, num_blocks: int | None = None) -> Drive:
    """Rows that share prefixes, and samples; pools as `PoolSplit` cuts them where not given."""
    pick, plain = random.Random(seed), random_drive(seed)
    drive = Drive(
        [each for each in plain.requests if each.params.n <= plain.max_num_seqs],
        plain.block_size,
        400,
        plain.max_num_seqs,
        pick.choice([3, 12, 40]),
        plain.mode,
        prefix_caching=plain.prefix_caching,
        predictor=Optimist(),
    )
    if num_blocks is None:
        split = PoolSplit(
            SPECS,
            drive.block_size,
            max_num_seqs=drive.max_num_seqs,
            max_num_batched_tokens=drive.budget,
            demand=PoolDemand.of(drive.plan, [9], is_whole=True),
        )
        _, num_blocks = split.beside(drive.num_blocks, PLENTY)
    return Drive(
        drive.requests,
        drive.block_size,
        drive.num_blocks,
        drive.max_num_seqs,
        drive.budget,
        drive.mode,
        prefix_caching=drive.prefix_caching,
        predictor=Optimist(),
        windows={9: num_blocks},
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_window_holds_its_tokens_and_a_block_more(seed: int) -> None:
    drive = windowed(seed, num_blocks=400)
    (pool,) = drive.windowed_pools
    chunks: dict[int, int] = {}  # tokens of the last chunk of each sequence
    num_held = 0
    while drive.scheduler.has_work:
        for chunk in drive.step().chunks:
            chunks[id(chunk.sequence)] = chunk.end - chunk.start
        reached = [9 - 1 + chunks.get(id(each), 1) for each in drive.scheduler.running]
        needed = sum(-(-tokens // drive.block_size) + 1 for tokens in reached)
        assert pool.num_held <= needed
        num_held = max(num_held, pool.num_held)
    assert num_held > 0


@pytest.mark.parametrize("seed", range(8))
def test_a_pool_cut_for_the_plan_is_never_short(seed: int) -> None:
    """Nobody gives way, and nothing is lost that a later row asks for, for want of its blocks."""
    drive = windowed(seed).finish()
    (pool,) = drive.windowed_pools
    assert not any(drive.scheduler.counts.preemptions.values())
    assert pool.counts.evictions == 0
    assert drive.scheduler.counts.steps_short_of_memory == 0


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(100, 300, 50))
def test_a_pool_cut_for_the_plan_is_never_short_long(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        test_a_pool_cut_for_the_plan_is_never_short(seed)
