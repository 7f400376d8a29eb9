"""Simulated jobs, as many as fit into the time of a default run; more by `make test-simulation`."""

import pytest

from tests.simulation.__main__ import simulate
from tests.simulation.jobs import OUTPUTS

JOBS = {
    "out.jsonl": 25,
    "out.csv": 15,
    "out.jsonl.gz": 10,
    "out.parquet": 20,
    "vectors.npy": 35,
    "vectors.parquet": 30,
}
LONG_JOBS = 2000


@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_lost(output: str) -> None:
    figures = simulate(range(JOBS[output]), output)
    assert figures.cuts > figures.jobs == JOBS[output]
    if output == "out.jsonl":
        assert figures.preemptions, "pools are large enough"


@pytest.mark.long
@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_lost_in_many_jobs(output: str) -> None:
    simulate(range(1000, 1000 + LONG_JOBS), output)
