"""The simulation of many replicas: what it says of the queue of units, in virtual time."""

import argparse

import numpy as np
import pytest

from benchmarks.replicas_simulated import Cluster, make_plan

NUM_ROWS = 20_000


@pytest.mark.parametrize(
    ("num_replicas", "slow", "dying", "least"),
    [(1, 0.0, 0.0, 0.99), (5, 0.0, 0.0, 0.95), (5, 0.2, 0.0, 0.9), (10, 0.0, 0.2, 0.8)],
)
def test_replicas_share_the_work(
    num_replicas: int, slow: float, dying: float, least: float
) -> None:
    """Where all are alike they compute no more than the plan says, and hardly a row twice."""
    args = argparse.Namespace(seats=32, slow=slow, dying=dying, seed=1)
    plan = make_plan(NUM_ROWS, 100, 1)
    whole = plan.part(0, len(plan))
    answers = np.minimum(np.random.default_rng(1).geometric(1 / 64, size=NUM_ROWS), 256)
    cluster = Cluster(plan, whole, answers, num_replicas, args)
    took = cluster.run()
    print(num_replicas, slow, dying, cluster.ideal / took, cluster.num_wasted)
    assert least < cluster.ideal / took <= 1
    assert cluster.queue.num_answered == NUM_ROWS
    assert cluster.queue.num_deaths == int(num_replicas * dying)
    if not slow and not dying:
        distinct = int((whole.num_tokens - whole.num_common_tokens).sum())
        assert cluster.num_wasted < NUM_ROWS / 100
        again = cluster.num_computed - distinct
        assert again >= 0
        assert again <= cluster.num_split or cluster.num_wasted
