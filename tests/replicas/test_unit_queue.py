"""UnitQueue: every row is answered once or given up, whoever dies, hangs or comes late."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.replicas.unit_queue import FEW_ROWS, PIECES, UNITS_AHEAD, Unit, UnitQueue


def queue_of(sizes: list[int], num_replicas: int = 2) -> UnitQueue:
    """Return a queue with one window of units of these sizes, and replicas 0, 1, … in it."""
    queue, begin = UnitQueue(num_replicas), 0
    for size in sizes:
        rows = range(begin, begin + size)
        queue.add(0, [(rows, rows)])
        begin += size
    queue.end()
    for replica in range(num_replicas):
        queue.join(replica)
    return queue


def taken(queue: UnitQueue, replica: int) -> Unit:
    unit = queue.next(replica)
    assert unit is not None
    return unit


def answer(queue: UnitQueue, replica: int, rows: list[int]) -> None:
    for row in rows:
        assert queue.answer(replica, row)


class Cluster:
    """Replicas that a test drives step by step: each answers a few rows of its oldest unit."""

    def __init__(self, queue: UnitQueue, poison: set[int], seed: int) -> None:
        self.queue = queue
        self.poison = poison
        self.draw = random.Random(seed)
        self.has: dict[int, list[list[int]]] = {}
        self.answered: Counter[int] = Counter()
        self.given_up: list[int] = []
        self.num_joined = 0
        self.stuck: set[int] = set()
        self.windows: dict[int, dict[int, int]] = {}

    def join(self) -> None:
        self.queue.join(self.num_joined)
        self.has[self.num_joined] = []
        self.num_joined += 1

    def step(self, replica: int) -> None:
        while (unit := self.queue.next(replica)) is not None:
            assert [self.windows[unit.window][place] for place in unit.positions] == list(unit.rows)
            assert list(unit.positions) == sorted(unit.positions)
            if unit.runs_alone:
                assert not any(self.has[replica])
            self.has[replica].append(list(unit.rows))
            if self.draw.random() < 0.7:
                self.queue.begin(replica, unit.number)
        if replica in self.stuck:
            return
        for rows in self.has[replica][:2]:
            for row in rows[: self.draw.randint(1, 40)]:
                if row in self.poison:
                    self.die(replica)
                    return
                rows.remove(row)
                if self.queue.answer(replica, row):
                    self.answered[row] += 1
        self.has[replica] = [rows for rows in self.has[replica] if rows]

    def die(self, replica: int) -> None:
        self.given_up += self.queue.died(replica)
        del self.has[replica]
        assert not self.queue.answer(replica, 0), "an answer of the dead counts"
        self.join()


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    num_replicas=st.integers(1, 6),
    num_poison=st.integers(0, 3),
    num_random_deaths=st.integers(0, 6),
    num_stuck=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
def test_every_row_is_answered_once_or_given_up(
    sizes: list[int],
    num_replicas: int,
    num_poison: int,
    num_random_deaths: int,
    num_stuck: int,
    seed: int,
) -> None:
    draw = random.Random(seed)
    total = sum(sizes)
    indices = [3 * row + 1 for row in range(total)]
    queue, begin = UnitQueue(num_replicas), 0
    windows: dict[int, dict[int, int]] = {}
    for number, size in enumerate(sizes):
        window = number // 4
        places = windows.setdefault(window, {})
        rows = indices[begin : begin + size]
        here = range(len(places), len(places) + size)
        places.update(zip(here, rows, strict=True))
        queue.add(window, [(rows, here)])
        begin += size
    queue.end()
    poison = set(draw.sample(indices, min(num_poison, total)))
    cluster = Cluster(queue, poison, seed)
    cluster.windows = windows
    for _ in range(num_replicas):
        cluster.join()
    cluster.stuck = set(draw.sample(range(num_replicas), min(num_stuck, num_replicas - 1)))
    random_deaths = sorted(draw.sample(range(60), num_random_deaths))
    num_poison_deaths, num_steps = 0, 0
    while not queue.is_over:
        num_steps += 1
        assert num_steps < 20_000, "no end"
        if random_deaths and num_steps > random_deaths[0]:
            random_deaths.pop(0)
            cluster.die(draw.choice(sorted(cluster.has)))
            continue
        before = queue.num_deaths
        cluster.step(draw.choice(sorted(cluster.has)))
        num_poison_deaths += queue.num_deaths - before
        if num_steps > 2_000 and cluster.stuck & set(cluster.has):
            cluster.die(min(cluster.stuck & set(cluster.has)))  # as one that hangs is
    assert max(cluster.answered.values(), default=1) == 1
    assert sorted([*cluster.answered, *cluster.given_up]) == indices
    assert poison <= set(cluster.given_up)
    # A poisoned row dies in a unit, in a copy of it, in pieces down to one row, and alone.
    assert num_poison_deaths <= len(poison) * 8
    if not num_random_deaths and not num_stuck:
        assert set(cluster.given_up) == poison
    assert queue.num_answered == len(cluster.answered)
    assert not any(queue.num_left(window) for window in windows)


def test_units_are_handed_out_in_order_and_two_ahead() -> None:
    queue = queue_of([10] * 8)
    first = [taken(queue, 0) for _ in range(UNITS_AHEAD)]
    assert [unit.rows[0] for unit in first] == [0, 10]
    assert queue.next(0) is None
    assert taken(queue, 1).rows[0] == 20
    queue.begin(0, first[0].number)
    assert taken(queue, 0).rows[0] == 30
    assert queue.next(0) is None
    assert queue.num_open(0) == 30


def test_an_idle_replica_waits_for_rows_that_are_to_come() -> None:
    queue = UnitQueue(2)
    queue.join(0)
    queue.join(1)
    queue.add(0, [(range(100), range(100))])
    taken(queue, 0)
    assert queue.next(1) is None, "copied while there are more rows to come"
    queue.add(1, [(range(100, 110), range(10))])
    assert taken(queue, 1).window == 1
    assert not queue.is_over


def test_idle_replicas_share_what_a_slow_one_has() -> None:
    queue = queue_of([100], num_replicas=3)
    slow = taken(queue, 0)
    answer(queue, 0, list(slow.rows[:20]))
    first, second = taken(queue, 1), taken(queue, 2)
    assert first.is_copy
    assert second.is_copy
    assert list(first.rows) == list(range(74, 100))  # a third of what is left
    assert list(second.rows) == list(range(56, 74))
    answer(queue, 1, list(first.rows))
    assert not queue.answer(0, first.rows[0]), "the second answer counts"
    answer(queue, 2, list(second.rows))
    few = taken(queue, 1)
    assert list(few.rows) == list(range(56 - FEW_ROWS, 56))
    answer(queue, 1, list(few.rows))
    while (unit := queue.next(2)) is not None:
        answer(queue, 2, list(unit.rows))
    assert queue.is_over


def test_a_row_that_two_have_survives_the_death_of_either() -> None:
    for dead, alive in ((0, 1), (1, 0)):
        queue = queue_of([10])
        taken(queue, 0)
        taken(queue, 1)
        assert queue.died(dead) == []
        assert queue.deaths_of(5) == 1
        answer(queue, alive, list(range(10)))
        assert queue.is_over


def test_the_rows_of_the_dead_run_apart() -> None:
    queue = queue_of([160], num_replicas=3)
    answer(queue, 0, list(taken(queue, 0).rows[:80]))
    assert queue.died(0) == []
    assert queue.num_waiting == PIECES
    queue.join(3)
    pieces = [taken(queue, replica) for replica in (1, 2, 3)]
    assert all(piece.is_suspect for piece in pieces)
    assert [list(piece.rows) for piece in pieces] == [
        list(range(begin, begin + 10)) for begin in (80, 90, 100)
    ]
    assert [queue.next(replica) for replica in (1, 2, 3)] == [None] * 3, "two pieces together"
    answer(queue, 2, list(pieces[1].rows))
    assert taken(queue, 2).rows[0] == 110


def test_a_suspect_row_runs_alone_and_is_given_up_when_two_replicas_die_of_it() -> None:
    queue = queue_of([1, 5], num_replicas=1)
    lone = taken(queue, 0)
    taken(queue, 0)
    assert not lone.runs_alone, "nobody has died yet"
    queue.died(0)
    queue.join(1)
    lone = taken(queue, 1)
    assert lone.runs_alone
    assert queue.next(1) is None
    assert queue.died(1) == [], "it may have been the machine"
    queue.join(2)
    rows: list[int] = []
    while queue.num_left(0) > 1:  # those that the first one had beside it do no harm
        unit = taken(queue, 2)
        if unit.rows == lone.rows:
            break
        rows += unit.rows
        answer(queue, 2, list(unit.rows))
    else:
        unit = taken(queue, 2)
    assert unit.rows == lone.rows
    assert queue.next(2) is None
    assert queue.died(2) == [lone.rows[0]]
    assert queue.num_left(0) == 5 - len(rows)


@pytest.mark.parametrize(("num_replicas", "most"), [(1, 12), (4, 18)])
def test_a_job_ends_after_too_many_deaths(num_replicas: int, most: int) -> None:
    queue = queue_of([1000], num_replicas=num_replicas)
    answer(queue, 0, [taken(queue, 0).rows[0]])
    for number in range(most):
        assert not queue.is_lost, number
        queue.join(100 + number)
        queue.died(100 + number)
    assert not queue.is_lost
    queue.died(0)
    assert queue.is_lost


@pytest.mark.parametrize(("num_replicas", "least"), [(1, 3), (5, 5)])
def test_a_job_ends_when_all_die_before_the_first_row(num_replicas: int, least: int) -> None:
    queue = queue_of([10], num_replicas=num_replicas)
    for number in range(least):
        assert not queue.is_lost
        queue.join(100 + number)
        queue.died(100 + number)
    assert queue.is_lost
