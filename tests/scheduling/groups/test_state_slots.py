"""States of recurrent layers beside the blocks: what runs, shares, forks and gives way."""

import random
from dataclasses import replace

import pytest

from pagedrun.paged.cache.block_pool import TransferKind
from pagedrun.paged.scheduling.states import StateSlots
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.request import Request
from tests.support.drive import RECOMPUTE, SWAP, Drive, Optimist, request, roomy

SIZE = 4


def branching(num_rows: int, num_common: int, num_own: int, n: int = 1) -> list[Request]:
    """Prompts that begin alike and then differ."""
    pick = random.Random(num_rows)
    trunk = pick.choices(range(2, 90), k=num_common)
    return [
        request(index, [*trunk, index % 2, *pick.choices(range(2, 90), k=num_own - 1)], n=n)
        for index in range(num_rows)
    ]


def test_a_prefix_is_computed_once_by_the_row_that_is_there_first() -> None:
    """The shape of vLLM's issue 36010: rows that wait for a state in place of computing it again,
    however many of them find a seat in the first step."""
    drive = roomy(branching(40, 369, 40), 16, budget=2048, max_num_seqs=16)
    drive = replace(drive, num_slots=18, min_state_tokens=64).finish()
    counts = drive.scheduler.counts
    num_generated = 40 * 3  # the last one is not computed
    assert counts.computed_tokens == 409 + 39 * (409 - 368) + num_generated
    assert counts.cached_tokens == 39 * 368
    (pool,) = drive.slots
    assert pool.counts.peak_held == 17  # all that run, and the kept state beside them
    assert pool.counts.evictions == 0
    assert drive.batches[0].input.num_tokens == 368


def test_states_are_given_back_with_the_last_row_that_begins_with_them() -> None:
    drive = roomy(branching(6, 30, 10), SIZE, budget=512, max_num_seqs=3)
    drive = replace(drive, num_slots=5)
    states = drive.scheduler._state.states
    assert isinstance(states, StateSlots)
    while drive.scheduler.num_planned:
        drive.step()
    assert drive.slots[0].num_cached == 0
    drive.finish()
    assert (states.num_kept, states.num_found) == (1, 5)


def test_levels_of_the_tree_have_a_state_each() -> None:
    """Depth three, with slots for those that run and one a level: nothing is evicted, and nobody
    computes more than the tokens of an unfinished block again."""
    pick = random.Random(1)
    requests = []
    for index in range(27):
        digits = index // 9, index // 3 % 3, index % 3
        prompt = [0] * 11
        for level in range(3):
            chosen = random.Random(str(digits[: level + 1]))
            prompt += chosen.choices(range(2, 90), k=13)
        requests.append(request(index, prompt + pick.choices(range(2, 90), k=5)))
    drive = roomy(requests, SIZE, budget=200, max_num_seqs=4)
    assert drive.plan.states is None
    drive = replace(drive, num_slots=4 + 3 + 1).finish()
    (pool,) = drive.slots
    assert pool.counts.evictions == 0
    counts, planned = drive.scheduler.counts, list(drive.plan)
    assert counts.cached_tokens == sum(each.num_state_blocks * SIZE for each in planned)
    once = drive.plan.tree.num_distinct_tokens
    assert counts.computed_tokens - 27 * 3 <= once + 27 * SIZE


@pytest.mark.parametrize("mode", [SWAP, RECOMPUTE])
def test_a_sequence_that_gave_way_goes_on_with_its_state(mode: PreemptionMode) -> None:
    requests = [request(index, [index] * 30, max_tokens=12) for index in range(3)]
    drive = Drive(requests, SIZE, 24, budget=48, mode=mode, swap_blocks=40)
    drive = replace(drive, num_slots=4, num_host_slots=3, predictor=Optimist()).finish()
    counts, moves = drive.scheduler.counts, drive.states[0].moves
    assert counts.preemptions[mode] > 0
    assert (moves[TransferKind.SWAP_IN] > 0) == (mode is SWAP)
    assert (counts.recomputed_tokens > 0) == (mode is RECOMPUTE)


def test_without_room_for_a_state_on_the_host_it_is_computed_again() -> None:
    requests = [request(index, [index] * 30, max_tokens=12) for index in range(3)]
    drive = Drive(requests, SIZE, 24, budget=48, swap_blocks=40, predictor=Optimist())
    drive = replace(drive, num_slots=4).finish()
    assert drive.scheduler.counts.preemptions[SWAP] == 0
    assert drive.scheduler.counts.preemptions[RECOMPUTE] > 0


def test_samples_without_a_seat_begin_where_the_prompt_ends() -> None:
    """A prompt for eight samples and three seats is computed once."""
    drive = roomy([request(0, range(2, 47), n=8)], SIZE, budget=64, max_num_seqs=3)
    drive = replace(drive, num_slots=6).finish()
    assert drive.num_late_forks == 5
    assert drive.scheduler.counts.computed_tokens == 45 + 8 * 3 + 5 * (45 - 44)


def test_a_row_goes_on_if_the_one_that_was_to_leave_its_state_fails() -> None:
    """The first row has left the state of the common tokens when its logits are NaN."""
    requests = branching(3, 40, 9)
    drive = roomy(requests, SIZE, budget=64, max_num_seqs=1)
    drive = replace(drive, num_slots=4, fails_at={0: 1}).finish()
    assert drive.failed == {0}
    assert drive.scheduler.counts.cached_tokens == 40  # of the third row, from the second


def test_a_row_does_not_wait_for_one_that_has_given_way() -> None:
    """The writer of a state is sent away in the middle of the prompt; those behind it run."""
    requests = [request(0, [7] * 20, max_tokens=30), *branching(4, 60, 8)[1:]]
    for budget in (5, 9, 16):
        Drive(
            requests, SIZE, 32, budget=budget, num_slots=5, predictor=Optimist(), swap_blocks=0
        ).finish()
