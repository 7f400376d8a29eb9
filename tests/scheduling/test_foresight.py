"""What is learnt of answers' lengths, and who is let in by it."""

import random

import pytest

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.scheduling import foresight
from pagedrun.paged.scheduling.foresight import Foresight
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling import SamplingParams

SIZE = 4


def sequence(
    num_prompt: int = 4,
    num_output: int = 0,
    max_tokens: int = 100,
    group: int = 0,
    pool: BlockPool | None = None,
) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    made = Sequence.start(PlannedRequest(Request(0, (1,) * num_prompt, params), group=(0, group)))
    made.output_token_ids = [2] * num_output
    if pool is not None:
        blocks = pool.allocate(pool.num_blocks_for(made.num_tokens))
        assert blocks is not None
        made.block_table = blocks
    return made


def taught(lengths: list[int], group: int = 0) -> Foresight:
    made = Foresight()
    for length in lengths:
        made.learn(sequence(num_output=length, group=group))
    return made


def test_nothing_known_means_the_limit() -> None:
    assert Foresight().expected_output(sequence(max_tokens=70)) == 70
    few = [5] * (foresight.MIN_LENGTHS - 1)
    assert taught(few).expected_output(sequence(max_tokens=70)) == 70


def test_most_answers_are_not_longer_than_expected() -> None:
    lengths = random.Random(0).choices(range(1, 90), k=200)
    expected = taught(lengths).expected_output(sequence())
    shorter = sum(length <= expected for length in lengths) / len(lengths)
    assert shorter == pytest.approx(foresight.CAUTION, abs=0.03)


def test_the_longer_an_answer_is_the_longer_it_is_expected_to_get() -> None:
    known = taught([2, 4, 8, 16, 32, 64])
    expected = [known.expected_output(sequence(num_output=done)) for done in range(64)]
    assert expected == sorted(expected)
    assert all(total > done for done, total in enumerate(expected))
    assert known.expected_output(sequence(num_output=64)) == 97  # longer than all before
    assert known.expected_output(sequence(num_output=64, max_tokens=70)) == 70


def test_a_group_with_experience_counts_before_the_run() -> None:
    known = taught([90] * 20, group=1)
    for _ in range(foresight.MIN_LENGTHS):
        known.learn(sequence(num_output=3, group=2))
    assert known.expected_output(sequence(group=2)) == 3
    assert known.expected_output(sequence(group=3)) == 90


def test_old_answers_and_old_groups_are_forgotten() -> None:
    known = taught([90] * 50 + [5] * foresight.MAX_LENGTHS)
    assert known.expected_output(sequence()) == 5
    assert len(known._all.ordered) == len(known._all.recent) == foresight.MAX_LENGTHS
    for group in range(foresight.MAX_GROUPS + 10):
        known.learn(sequence(num_output=1, group=group))
    assert len(known._groups) == foresight.MAX_GROUPS


def test_full_lengths_that_fit_are_let_in_whatever_is_expected() -> None:
    pool = BlockPool(4, SIZE)
    running = [sequence(max_tokens=5, pool=pool)]  # 4 + 5 - 1 tokens: two blocks
    assert Foresight().allows(pool, running, sequence(max_tokens=5), 1)
    longer = [sequence(max_tokens=6, pool=BlockPool(4, SIZE))]  # three
    assert not Foresight().allows(pool, longer, sequence(max_tokens=6), 1)


def test_what_ends_soon_makes_room_for_what_grows_later() -> None:
    """Six blocks: four of them come back before the new one needs its third."""
    pool = BlockPool(6, SIZE)
    old = sequence(num_prompt=8, num_output=7, pool=pool)
    newcomer = sequence(num_prompt=5)
    assert len(old.block_table) == 4
    assert taught([8] * 10).allows(pool, [old], newcomer, 2)
    assert not taught([40] * 10).allows(pool, [old], newcomer, 2)
    assert not taught([8] * 10).allows(pool, [old], sequence(num_prompt=8), 2)  # needs it at once


@pytest.mark.parametrize(("num_shared", "allowed"), [(0, True), (8, True), (12, False)])
def test_shared_blocks_do_not_come_back(num_shared: int, allowed: bool) -> None:
    """The new one will need two more blocks."""
    pool = BlockPool(6, SIZE)
    old = sequence(num_prompt=12, num_output=3, pool=pool)
    old.num_shared_tokens = num_shared
    known = taught([4] * 10)
    for _ in range(10):
        known.learn(sequence(num_output=8, group=1))
    assert known.allows(pool, [old], sequence(num_prompt=5, group=1), 2) is allowed
