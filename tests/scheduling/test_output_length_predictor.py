"""What is learnt of answers' lengths, and who is let in by it."""

import random
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.scheduling import admission_policy as predictor
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable, group_number
from tests.support.made_step import made_sequence

SIZE = 4


def sequence(
    num_prompt: int = 4,
    num_output: int = 0,
    max_tokens: int = 100,
    group: int = 0,
    num_shared: int = 0,
    pool: BlockPool | None = None,
    table: SequenceTable | None = None,
) -> Sequence:
    made = made_sequence(
        (1,) * num_prompt,
        (2,) * num_output,
        max_tokens=max_tokens,
        group=group,
        num_shared_tokens=num_shared,
        table=table,
    )
    if pool is not None:
        blocks = pool.allocate(pool.num_blocks_for(made.num_tokens))
        assert blocks is not None
        made.block_table = blocks
    return made


def taught(lengths: list[int], group: int = 0) -> OutputLengthPredictor:
    made = OutputLengthPredictor()
    for length in lengths:
        made.learn(sequence(num_output=length, group=group))
    return made


def expected(known: OutputLengthPredictor, one: Sequence) -> int:
    [length] = known.expected_outputs(one.table, np.array([one.row_index])).tolist()
    return int(length)


def allows(
    known: OutputLengthPredictor, pool: BlockPool, one: Sequence, num_taken: int, **newcomer: Any
) -> bool:
    """Whether a new sequence may run beside one that does."""
    other = sequence(table=one.table, **newcomer)
    return known.allows(pool, one.table, np.array([one.row_index, other.row_index]), num_taken)


def test_nothing_known_means_the_limit() -> None:
    assert expected(OutputLengthPredictor(), sequence(max_tokens=70)) == 70
    few = [5] * (predictor.MIN_LENGTHS - 1)
    assert expected(taught(few), sequence(max_tokens=70)) == 70


def test_most_answers_are_not_longer_than_expected() -> None:
    lengths = random.Random(0).choices(range(1, 90), k=200)
    most = expected(taught(lengths), sequence())
    shorter = sum(length <= most for length in lengths) / len(lengths)
    assert shorter == pytest.approx(predictor.CAUTION, abs=0.03)


def test_the_longer_an_answer_is_the_longer_it_is_expected_to_get() -> None:
    known = taught([2, 4, 8, 16, 32, 64])
    totals = [expected(known, sequence(num_output=done)) for done in range(64)]
    assert totals == sorted(totals)
    assert all(total > done for done, total in enumerate(totals))
    assert expected(known, sequence(num_output=64)) == 97  # longer than all before
    assert expected(known, sequence(num_output=64, max_tokens=70)) == 70


def test_a_group_with_experience_counts_before_the_run() -> None:
    known = taught([90] * 20, group=1)
    for _ in range(predictor.MIN_LENGTHS):
        known.learn(sequence(num_output=3, group=2))
    assert expected(known, sequence(group=2)) == 3
    assert expected(known, sequence(group=3)) == 90


def test_old_answers_and_old_groups_are_forgotten() -> None:
    known = taught([90] * 50 + [5] * predictor.MAX_LENGTHS)
    assert expected(known, sequence()) == 5
    assert len(known._all.ordered) == len(known._all.recent) == predictor.MAX_LENGTHS
    for group in range(predictor.MAX_GROUPS + 10):
        known.learn(sequence(num_output=1, group=group))
    assert len(known._groups) == predictor.MAX_GROUPS


def test_the_group_that_was_learnt_of_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MAX_GROUPS", 2)
    known = OutputLengthPredictor()
    for group in (1, 2, 1, 3):
        known.learn(sequence(num_output=1, group=group))
    assert set(known._groups) == {1, 3}


def test_subtrees_of_two_windows_are_two_groups() -> None:
    numbers = {group_number((window, subtree)) for window in range(4) for subtree in range(4)}
    assert len(numbers) == 16


def test_full_lengths_that_fit_are_let_in_whatever_is_expected() -> None:
    pool = BlockPool(4, SIZE)
    known = OutputLengthPredictor()
    running = sequence(max_tokens=5, pool=pool)  # 4 + 5 - 1 tokens: two blocks
    assert allows(known, pool, running, 1, max_tokens=5)
    longer = sequence(max_tokens=6, pool=BlockPool(4, SIZE))  # three
    assert not allows(known, pool, longer, 1, max_tokens=6)


def test_what_ends_soon_makes_room_for_what_grows_later() -> None:
    """Six blocks: four of them come back before the new one needs its third."""
    pool = BlockPool(6, SIZE)
    old = sequence(num_prompt=8, num_output=7, pool=pool)
    assert old.num_blocks == 4
    assert allows(taught([8] * 10), pool, old, 2, num_prompt=5)
    assert not allows(taught([40] * 10), pool, old, 2, num_prompt=5)
    assert not allows(taught([8] * 10), pool, old, 2, num_prompt=8)  # needs it at once


@pytest.mark.parametrize(("num_shared", "allowed"), [(0, True), (8, True), (12, False)])
def test_shared_blocks_do_not_come_back(num_shared: int, allowed: bool) -> None:
    """The new one will need two more blocks."""
    pool = BlockPool(6, SIZE)
    old = sequence(num_prompt=12, num_output=3, num_shared=num_shared, pool=pool)
    known = taught([4] * 10)
    for _ in range(10):
        known.learn(sequence(num_output=8, group=1))
    assert allows(known, pool, old, 2, num_prompt=5, group=1) is allowed
