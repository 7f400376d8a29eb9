"""The scheduler through random runs with drafts: the tokens are those without, and memory that
wrong drafts took is there for the next step as if they had not been."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drive import (
    Drive,
    FakeDrafts,
    drive_with_states,
    drives,
    random_drive,
    windowed_drive,
)

MAKERS = [random_drive, drive_with_states, windowed_drive]
SHARES = [0.3, 0.8, 1.0]


@given(drive=drives(), seed=st.integers(0, 99), share=st.sampled_from(SHARES))
@settings(max_examples=8, deadline=None)
def test_any_run_with_drafts_ends_with_the_right_tokens(
    drive: Drive, seed: int, share: float
) -> None:
    replace(drive, drafts=FakeDrafts(seed, share)).finish()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", MAKERS)
def test_a_crowded_run_with_drafts_ends_with_the_right_tokens(
    make: Callable[[int], Drive], seed: int
) -> None:
    for share in SHARES:
        drive = replace(make(seed), drafts=FakeDrafts(seed, share)).finish()
        assert drive.num_right_drafts <= drive.num_drafts


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", MAKERS)
def test_wrong_drafts_change_no_step(make: Callable[[int], Drive], seed: int) -> None:
    """No row is preempted, waits or computes a prefix again because of them."""
    assert_wrong_drafts_change_no_step(make, seed)


def assert_wrong_drafts_change_no_step(make: Callable[[int], Drive], seed: int) -> None:
    plain = make(seed).finish()
    drive = replace(make(seed), drafts=FakeDrafts(seed, 0.0)).finish()
    assert chunks(drive) == chunks(plain)
    counts, expected = drive.scheduler.counts, plain.scheduler.counts
    assert counts.preemptions == expected.preemptions
    assert counts.cached_tokens == expected.cached_tokens
    pools = [drive.pool, *drive.windowed_pools, *drive.slots]
    plain_pools = [plain.pool, *plain.windowed_pools, *plain.slots]
    for pool, without in zip(pools, plain_pools, strict=True):
        assert pool.counts.evictions == without.counts.evictions


def chunks(drive: Drive) -> list[list[tuple[int, int, int, int]]]:
    """Return row, sample and tokens of each chunk of each step, without drafts."""
    return [
        [
            (each.sequence.request.index, each.sequence.sample_index, each.start, each.end)
            for each in step.chunks
            if not each.drafts
        ]
        for step in drive.batches
    ]


@pytest.mark.long
@given(drive=drives(), seed=st.integers(0, 99), share=st.sampled_from(SHARES))
@settings(max_examples=2000, deadline=None)
def test_any_run_with_drafts_ends_with_the_right_tokens_long(
    drive: Drive, seed: int, share: float
) -> None:
    replace(drive, drafts=FakeDrafts(seed, share)).finish()


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1000, 2000, 100))
@pytest.mark.parametrize("make", MAKERS)
def test_a_crowded_run_with_drafts_long(make: Callable[[int], Drive], first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        assert_wrong_drafts_change_no_step(make, seed)
        for share in SHARES:
            replace(make(seed), drafts=FakeDrafts(seed, share)).finish()
