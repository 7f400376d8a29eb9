"""The scheduler through whole random runs: whatever happens, every row gets its own tokens."""

from collections.abc import Callable

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pagedrun.paged.cache.block_pool import TransferKind
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.values.request import Request
from tests.support.drive import (
    RECOMPUTE,
    SWAP,
    Drive,
    drive_with_states,
    drives,
    random_drive,
    request_lists,
    roomy,
    sibling_drive,
    windowed_drive,
)
from tests.support.every_pair import long_except


@given(drive=drives())
def test_any_run_ends_with_the_right_tokens(drive: Drive) -> None:
    drive.finish()
    counts, moves = drive.scheduler.counts, drive.model.moves
    for seen, what in (
        (drive.refused, "refused"),
        (counts.preemptions[SWAP], "swapped"),
        (counts.preemptions[RECOMPUTE], "recomputed"),
        (moves[TransferKind.COPY], "copied"),
        (counts.cached_tokens, "cached"),
        (drive.pool.counts.evictions, "evicted"),
        (drive.num_late_forks, "forked late"),
        (counts.partial_hit_tokens, "copied in part"),
    ):
        event(f"{what}: {bool(seen)}")


@pytest.mark.long
@given(drive=drives())
@settings(max_examples=6000, deadline=None)
def test_any_run_ends_with_the_right_tokens_long(drive: Drive) -> None:
    drive.finish()


# Plain runs, runs with states of recurrent layers, and two with groups that have windows.
MAKERS = [random_drive, drive_with_states, windowed_drive, sibling_drive]


@pytest.mark.parametrize("seed", long_except(range(40), range(14)))
@pytest.mark.parametrize("make", MAKERS)
def test_a_crowded_run_ends_with_the_right_tokens(make: Callable[[int], Drive], seed: int) -> None:
    make(seed).finish()


@pytest.mark.parametrize("seed", [169, 838])
def test_a_block_that_one_group_computes_again_is_no_source_of_a_copy(seed: int) -> None:
    """A sibling found it in the cache of the first group, but not of the one with a window."""
    sibling_drive(seed).finish()


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1000, 4000, 500))
@pytest.mark.parametrize("make", MAKERS)
def test_a_crowded_run_ends_with_the_right_tokens_long(
    make: Callable[[int], Drive], first_seed: int
) -> None:
    for seed in range(first_seed, first_seed + 500):
        make(seed).finish()


@given(
    requests=request_lists(),
    block_size=st.sampled_from([1, 2, 4, 16]),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(1, 8),
)
@settings(max_examples=30, deadline=None)
def test_a_large_pool_computes_each_prefix_once(
    requests: list[Request], block_size: int, budget: int, max_num_seqs: int
) -> None:
    """Whatever the steps look like, the cache gives all that the plan promises."""
    drive = roomy(requests, block_size, budget, max_num_seqs).finish()
    counts = drive.scheduler.counts
    assert counts.cached_tokens - counts.partial_hit_tokens == drive.plan.sharing.block_hit_tokens
    assert counts.cached_tokens <= drive.plan.sharing.achievable_hit_tokens
    assert sum(counts.preemptions.values()) == 0
    assert drive.pool.counts.evictions == 0
    # Every block has had its last use.
    assert drive.pool.num_cached == 0


@given(
    requests=request_lists(),
    block_size=st.sampled_from([1, 2, 4, 16]),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(1, 8),
)
def test_the_planned_pool_is_large_enough(
    requests: list[Request], block_size: int, budget: int, max_num_seqs: int
) -> None:
    """With `num_blocks_needed` blocks nothing is preempted and no shared prefix is lost."""
    plan = Plan(requests, PlanRules(block_size))
    num_blocks = plan.num_blocks_needed(max_num_seqs)
    drive = Drive(requests, block_size, num_blocks, max_num_seqs, budget).finish()
    assert not drive.refused
    counts = drive.scheduler.counts
    assert sum(counts.preemptions.values()) == 0
    assert counts.cached_tokens - counts.partial_hit_tokens == plan.sharing.block_hit_tokens
