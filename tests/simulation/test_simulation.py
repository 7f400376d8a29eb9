"""Simulated jobs, as many as fit into the time of a default run; more by `make test-simulation`."""

import pytest

from tests.simulation.__main__ import simulate
from tests.simulation.jobs import OUTPUTS

JOBS = 25  # of each output
LONG_JOBS = 2000


@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_lost(output: str) -> None:
    figures = simulate(range(JOBS), output)
    assert figures.jobs == JOBS
    assert figures.cuts > JOBS


@pytest.mark.long
@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_lost_in_many_jobs(output: str) -> None:
    simulate(range(JOBS, JOBS + LONG_JOBS), output)


def test_pools_are_too_small() -> None:
    """A control: simulated jobs preempt rows."""
    assert simulate(range(1000, 1010), "out.jsonl").preemptions
