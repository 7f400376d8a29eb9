"""The report of several replicas, by hand from two of them."""

from typing import Any, cast

import pytest

from pagedrun.paged.metrics.report_sections import empty_engine_report
from pagedrun.paged.replicas.merged_report import ReplicaCounts, merged_report
from pagedrun.paged.replicas.replica_messages import Ended, ReplicaOffer
from pagedrun.paged.replicas.replica_set import Replica
from pagedrun.paged.values.engine_config import FITTED


def member(number: int, node: str, **sections: dict[str, Any]) -> Replica:
    """Return a replica that ended with a report of zeros, but for these figures."""
    report = cast(dict[str, Any], empty_engine_report())
    for name, figures in sections.items():
        report[name] = {**report[name], **figures}
    offer = cast(ReplicaOffer, object())  # only that there is one
    ended = Ended(cast(Any, report), None, False)
    return Replica(number, node=node, offer=offer, ended=ended)


def merged(*members: Replica, counts: ReplicaCounts | None = None) -> dict[str, Any]:
    counts = ReplicaCounts(run_s=2.0) if counts is None else counts
    return cast(dict[str, Any], merged_report(members, counts, 1.0, dict.fromkeys(FITTED)))


def test_tokens_and_their_shares_are_those_of_all_rows() -> None:
    counts = ReplicaCounts(run_s=2.0, copied_prompt_tokens=20, copied_tokens=5)
    one = member(0, "a", tokens={"prompt": 100, "cached": 60, "generated": 10})
    two = member(1, "b", tokens={"prompt": 80, "cached": 0, "generated": 7})
    found = merged(one, two, counts=counts)
    tokens = found["tokens"]
    assert (tokens["prompt"], tokens["cached"], tokens["computed"]) == (200, 80, 120)
    assert (tokens["generated"], tokens["generated_copied"]) == (22, 5)
    assert found["prefix"]["hit_rate"] == pytest.approx(80 / 200)
    assert found["time"]["prompt_tokens_per_s"] == pytest.approx(200 / 2)
    assert found["time"]["generated_tokens_per_s"] == pytest.approx(22 / 2)


def test_a_pool_counts_by_its_blocks_at_the_peak() -> None:
    one = member(0, "a", kv={"num_blocks": 10, "peak_blocks": 9, "utilization_at_peak": 0.5})
    two = member(1, "b", kv={"num_blocks": 20, "peak_blocks": 1, "utilization_at_peak": 1.0})
    kv = merged(one, two)["kv"]
    assert (kv["num_blocks"], kv["peak_blocks"]) == (30, 10)
    assert kv["utilization_at_peak"] == pytest.approx((9 * 0.5 + 1 * 1.0) / 10)


@pytest.mark.parametrize(("nodes", "total", "free"), [("aa", 100, 40), ("ab", 200, 140)])
def test_the_memory_of_a_machine_counts_once(nodes: str, total: int, free: int) -> None:
    memory = {"weights": 20, "kv_pool": 10, "device_total": 100, "free": 70}
    found = merged(*(member(i, node, memory=memory) for i, node in enumerate(nodes)))["memory"]
    assert (found["weights"], found["device_total"], found["free"]) == (40, total, free)
