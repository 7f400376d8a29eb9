"""When a run with a deadline begins its last rows, on a clock that the test turns."""

import pytest

from pagedrun.paged.scheduling.admission_policy import MOST_DURATIONS, AdmissionDeadline
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def take(last: AdmissionDeadline, clock: Clock, row: int, seconds: float) -> None:
    last.begin(Request(row, (1,), SamplingParams()))
    clock.now += seconds
    last.end(row)


def test_rows_begin_until_one_would_not_be_finished() -> None:
    """One that begins later is lost at the deadline, and what it took with it."""
    clock = Clock()
    last = AdmissionDeadline(160.0, clock)
    for row in range(5):
        take(last, clock, row, 10.0)
    assert clock.now == 150.0
    assert last.is_over
    clock.now = 149.9
    assert not last.is_over


def test_before_anything_is_learnt_only_the_deadline_counts() -> None:
    clock = Clock()
    last = AdmissionDeadline(160.0, clock)
    assert not last.is_over
    clock.now = 160.0
    assert last.is_over


def test_one_row_that_takes_an_hour_does_not_end_the_run_an_hour_before() -> None:
    clock = Clock()
    last = AdmissionDeadline(10_000.0, clock)
    take(last, clock, 0, 3600.0)
    for row in range(1, 30):
        take(last, clock, row, 1.0)
    clock.now = 9_990.0
    assert not last.is_over


def test_what_is_long_past_is_forgotten() -> None:
    """A batch that fills up makes rows slower than the first ones were."""
    clock = Clock()
    last = AdmissionDeadline(10_000.0, clock)
    for row in range(2 * MOST_DURATIONS):
        take(last, clock, row, 1.0 if row < MOST_DURATIONS else 5.0)
    clock.now = 9_996.0
    assert last.is_over


@pytest.mark.parametrize("row", [0, 7])
def test_without_a_deadline_it_never_ends(row: int) -> None:
    clock = Clock()
    last = AdmissionDeadline(None, clock)
    take(last, clock, row, 1e9)
    assert not last.is_over
