"""Groups of layers with a window beside the group without: what runs, shares and gives back."""

import random
from dataclasses import replace
from typing import Any

import pytest

from pagedrun.paged.scheduling.monitoring import engine_state
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.planned_request import BlockKey, BranchPoint
from tests.support.drive import (
    RECOMPUTE,
    SWAP,
    Drive,
    least_blocks,
    random_drive,
    request,
    roomy,
)

SIZE = 4


@pytest.mark.parametrize("seed", range(8))
def test_a_second_group_may_keep_all_blocks_as_well(seed: int) -> None:
    """Layers with full attention whose heads differ from those of the first group."""
    plain = random_drive(seed)
    window = least_blocks(9, plain.budget, plain.block_size) + 4
    replace(plain, windows={None: plain.num_blocks + seed % 3, 9: window}).finish()


@pytest.mark.parametrize("window", [1, 4, 5, 50])
def test_a_long_prompt_takes_no_more_than_window_and_chunk(window: int) -> None:
    """Blocks behind the window are given back while a prompt is computed and while it decodes."""
    num_blocks = least_blocks(window, 8, SIZE)
    drive = Drive(
        [request(0, range(600), max_tokens=40)], SIZE, 160, budget=8, windows={window: num_blocks}
    ).finish()
    (pool,) = drive.windowed_pools
    assert pool.counts.peak_held <= num_blocks - 1
    assert drive.pool.counts.peak_held == 160


@pytest.mark.parametrize("seed", range(12))
def test_windows_take_nothing_from_prefix_sharing(seed: int) -> None:
    """Rows go on behind the whole blocks that they have in common with others, wherever they
    branch off: what lies within the window there is kept, and what lies before it is not."""
    pick = random.Random(seed)
    trunk = pick.choices(range(3), k=90)
    requests = [
        request(index, trunk[: pick.randint(1, 90)] + pick.choices(range(3), k=12))
        for index in range(14)
    ]
    plain = roomy(requests, SIZE, budget=24, max_num_seqs=pick.choice([1, 3]))
    window = pick.choice([1, 3, 9, 30])
    drive = replace(plain, windows={window: plain.num_blocks}).finish()
    plain.finish()
    num_found = drive.pool.counts.hits
    assert num_found == plain.pool.counts.hits > 0
    (pool,) = drive.windowed_pools
    assert pool.counts.evictions == 0
    assert pool.num_cached == 0  # every block has had its last use
    assert pool.counts.peak_held < drive.pool.counts.peak_held


@pytest.mark.parametrize("mode", [SWAP, RECOMPUTE])
def test_a_short_pool_of_a_window_makes_a_sequence_give_way(mode: PreemptionMode) -> None:
    requests = [request(index, [index] * 30, max_tokens=12) for index in range(3)]
    drive = Drive(requests, SIZE, 200, budget=12, mode=mode, swap_blocks=40, windows={9: 7})
    drive.finish()
    assert drive.scheduler.counts.preemptions[mode] > 0
    causes = [each.cause for each in drive.scheduler.residency.preemptions.items]
    assert all(0 < cause.num_needed <= 4 and cause.num_free < 7 for cause in causes)  # not of 200


def test_the_state_of_an_engine_shows_every_group() -> None:
    requests = [request(0, range(30), max_tokens=12)]
    alone = Drive(requests, SIZE, 200)
    assert "kv_groups" not in engine_state(alone.scheduler, 0, 0)
    drive = Drive(requests, SIZE, 200, budget=12, windows={9: 7})
    while drive.scheduler.has_work:
        drive.step()
        groups: Any = engine_state(drive.scheduler, 0, 0)["kv_groups"]
        [full, sliding] = groups
        assert (full["window"], sliding["window"]) == (None, 9)
        for shown, pool in ((full, drive.pool), (sliding, drive.windowed_pools[0])):
            assert (shown["num_blocks"], shown["held"]) == (pool.num_blocks, pool.num_held)


def test_what_led_to_nan_is_found_by_nobody_behind_the_window_either() -> None:
    """The pinned blocks of a branch point are cached after the row has given them back."""
    prompt = [1] * 40
    requests = [request(0, [*prompt, 2], max_tokens=9), request(1, [*prompt, 3], max_tokens=9)]
    drive = Drive(requests, SIZE, 60, max_num_seqs=1, fails_at={0: 6}, windows={4: 12})
    while not drive.failed:
        drive.step()
    # A later row would publish the first group's blocks anew, and find these beside them.
    assert [group.pool.published for group in drive.scheduler.groups] == [[], []]
    drive.finish()
    assert drive.scheduler.counts.cached_tokens == 0


def test_a_branch_point_pins_what_its_window_reaches_back_to() -> None:
    drive = Drive([request(0, [1])], SIZE, 8, windows={9: 8})
    _, group = drive.scheduler._state.groups
    keys = BlockKey.chain(tuple(range(48)), SIZE, [])
    group.pin_branches(keys, BranchPoint(10, BranchPoint(3, None)))
    pinned = [index for index, key in enumerate(keys) if group.pool.is_pinned(key)]
    assert pinned == [0, 1, 2, 7, 8, 9]  # token 39 sees those from 31 on, token 11 from 3 on
    group.pin_branches(keys, BranchPoint(3, None))
    assert [i for i, key in enumerate(keys) if group.pool.is_pinned(key)] == [0, 1, 2]
    group.pin_branches(keys, None)
    assert not any(map(group.pool.is_pinned, keys))


def test_a_prompt_that_is_found_whole_still_reads_its_window() -> None:
    prompt = tuple(range(40))
    requests = [request(index, prompt, max_tokens=3) for index in range(2)]
    drive = Drive(requests, SIZE, 60, max_num_seqs=1, windows={6: 20}).finish()
    assert drive.scheduler.counts.cached_tokens == 39
