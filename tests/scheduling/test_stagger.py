"""Sequences of a known length begin one after another, where many follow and the pool is small."""

from dataclasses import replace
from typing import Any

import pytest

from pagedrun.paged.values.request import Request
from tests.support.drive import Drive, request


def requests(
    count: int, *, max_tokens: int = 60, ignore_eos: bool = True, stop: tuple[int, ...] = ()
) -> list[Request]:
    made = [request(index, [1, 2, 10 + index], max_tokens=max_tokens) for index in range(count)]
    return [
        replace(each, params=replace(each.params, ignore_eos=ignore_eos, stop_token_ids=stop))
        for each in made
    ]


def drive(rows: list[Request], *, staggers: bool, **sizes: int) -> Drive:
    given: dict[str, Any] = {"block_size": 4, "num_blocks": 160, "max_num_seqs": 64, **sizes}
    return Drive(rows, **given, staggers=staggers).finish()


def most_running(done: Drive) -> int:
    return max(len(step.chunks) for step in done.batches)


def test_more_run_at_once_in_fewer_steps() -> None:
    rows = requests(100)
    together, staggered = (drive(rows, staggers=each) for each in (False, True))
    assert staggered.outputs == together.outputs
    assert most_running(staggered) >= 1.4 * most_running(together)
    assert len(staggered.batches) <= 0.8 * len(together.batches)
    swapped = sum(staggered.scheduler.counts.preemptions.values())
    assert swapped <= 3, "the distances suit the lengths"


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        pytest.param(requests(18), {}, id="few rows"),
        pytest.param(requests(100), {"num_blocks": 600, "max_num_seqs": 8}, id="a large pool"),
        pytest.param(requests(100, ignore_eos=False), {}, id="unknown lengths"),
        pytest.param(requests(100, stop=(5,)), {}, id="a stop token"),
        pytest.param(requests(100, max_tokens=2), {}, id="short answers"),
    ],
)
def test_they_begin_at_once_where_it_does_not_pay(
    rows: list[Request], sizes: dict[str, int]
) -> None:
    together, staggered = (drive(rows, staggers=each, **sizes) for each in (False, True))
    assert [len(each.chunks) for each in staggered.batches] == [
        len(each.chunks) for each in together.batches
    ]
