"""`auto` against fixed numbers of drafts, in simulated runs of short answers."""

from functools import partial

import pytest

from benchmarks.draft_lengths import simulated_time
from pagedrun.paged.speculation.costs import RowCosts, best_lengths
from pagedrun.paged.values.engine_config import AUTO

# Times of steps by their rows: weights of 16 and of 4 bits on CPUs, and memory alone.
WIDE = {1: 1.0, 4: 1.08, 8: 1.8, 16: 2.6, 32: 3.2, 64: 5.0}
NARROW = {1: 1.0, 2: 1.05, 4: 1.2, 8: 2.2, 16: 4.0, 32: 6.5, 64: 11.0}
FLAT = {1: 1.0, 64: 1.1, 4096: 5.0}


@pytest.mark.parametrize(
    ("given", "max_num_seqs", "chance"),
    [
        *((WIDE, 4, 0.9), (NARROW, 1, 0.9)),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in ((WIDE, 1, 0.6), (NARROW, 4, 0.6), (FLAT, 1, 0.6))
        ),
    ],
)
def test_the_choice_is_near_the_best(
    given: dict[int, float], max_num_seqs: int, chance: float
) -> None:
    time_of = partial(
        simulated_time, given=given, max_num_seqs=max_num_seqs, num_rows=8, num_tokens=120
    )
    plain = time_of(AUTO, chance=0.0)
    best = min(plain, *(time_of(each, chance=chance) for each in ("1", "3", "7")))
    assert best >= 0.9 * time_of(AUTO, chance=chance)


@pytest.mark.parametrize("max_num_seqs", [1, 16])
def test_drafts_that_are_seldom_right_cost_little(max_num_seqs: int) -> None:
    time_of = partial(
        simulated_time,
        given=NARROW,
        max_num_seqs=max_num_seqs,
        num_rows=max(max_num_seqs, 8),
        num_tokens=120,
    )
    assert time_of(AUTO, chance=0.3) <= 1.03 * time_of(AUTO, chance=0.0)


@pytest.mark.parametrize("count", [1, 2])
def test_a_sequence_with_few_drafts_gets_them(count: int) -> None:
    """A module that predicts one or two tokens would be of no use otherwise."""
    costs = RowCosts()
    for _ in range(4):
        costs.note(1, 1.0)
    costs.note_prompt(100, 1.0)
    found = [best_lengths([count], [0.9], range(1, 17), costs) for _ in range(10)]
    assert found[0] == [0], "a number of rows that is new is tried once it pays"
    assert found[-1] == [count]
