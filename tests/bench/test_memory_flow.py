"""First fit of exact lengths, held against a memory of single slots and against the scheduler."""

import random
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.bench.memory import NormalLengths
from pagedrun.paged.bench.memory_flow import FirstFit, FirstFitFlow, Flow
from pagedrun.paged.bench.result import plain

SMALL = NormalLengths(mean=40, std=25, low=5, high=128)


class Slots:
    """A memory as an array of slots, without a list of holes."""

    def __init__(self, num_slots: int) -> None:
        self.taken = np.zeros(num_slots, dtype=bool)

    def allocate(self, length: int) -> int | None:
        for start in range(len(self.taken) - length + 1):
            if not self.taken[start : start + length].any():
                self.taken[start : start + length] = True
                return start
        return None

    def release(self, start: int, length: int) -> None:
        assert self.taken[start : start + length].all()
        self.taken[start : start + length] = False

    @property
    def holes(self) -> list[tuple[int, int]]:
        edges = np.flatnonzero(np.diff(np.r_[True, self.taken, True].astype(int)))
        return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_pieces_and_holes_are_those_of_single_slots() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        num_slots = rng.randint(1, 90)
        memory, slots = FirstFit(num_slots), Slots(num_slots)
        pieces: list[tuple[int, int]] = []
        for _ in range(50):
            if pieces and rng.random() < 0.45:
                piece = pieces.pop(rng.randrange(len(pieces)))
                memory.release(*piece)
                slots.release(*piece)
            else:
                length = rng.randint(1, 25)
                start = memory.allocate(length)
                assert start == slots.allocate(length)
                pieces += [] if start is None else [(start, length)]
            assert memory.holes == slots.holes
            assert memory.num_free == int((~slots.taken).sum())
            assert memory.largest_hole == max((length for _, length in slots.holes), default=0)


def test_a_request_is_refused_although_enough_is_free() -> None:
    memory = FirstFit(10)
    first, _, last = (memory.allocate(length) for length in (4, 2, 4))
    assert (first, last) == (0, 6)
    memory.release(0, 4)
    memory.release(6, 4)
    assert (memory.num_free, memory.largest_hole) == (8, 4)
    assert memory.allocate(5) is None
    assert memory.holes == [(0, 4), (6, 4)]


@pytest.mark.parametrize(
    ("length", "count", "num_slots"),
    [(1, 10, 3), (2, 9, 5), (7, 30, 50), (100, 50, 1000), (128, 40, 517), (900, 40, 9000)],
)
def test_equal_lengths_run_as_in_the_engines_scheduler(
    length: int, count: int, num_slots: int
) -> None:
    """Pieces of one length are blocks of that length, step by step, prompts in chunks included."""
    blocks = Flow.through([length] * count, length, num_slots, bytes_per_token=1)
    pieces = FirstFitFlow.of([length] * count, num_slots)
    for name in ("steps", "max_running", "mean_running", "utilization", "generated_tokens"):
        assert getattr(pieces, name) == pytest.approx(getattr(blocks, name)), name
    assert list(pieces.samples) == [
        {**each, "blocks_used": each["blocks_used"] * length} for each in blocks.samples
    ]
    assert (pieces.refused_steps, pieces.external_fragmentation) == (0, 0.0)


def test_figures_are_those_of_single_slots() -> None:
    """Counted again without the allocator, in the order of the plan: longest answers first."""
    lengths = SMALL.draw(7, 60)
    waiting = sorted(range(60), key=lambda index: -(lengths[index] // 2))
    slots, running, num_steps, short = Slots(500), dict[int, tuple[int, int]](), 0, []
    flow = FirstFitFlow.of(lengths, 500)
    most = 0
    while waiting or running:
        while waiting:
            start = slots.allocate(lengths[waiting[0]])
            if start is None:
                break
            index = waiting.pop(0)
            running[index] = (start, num_steps + lengths[index] // 2 + 1)
        free = int((~slots.taken).sum())
        if waiting and free >= lengths[waiting[0]]:
            largest = max(length for _, length in slots.holes)
            short.append((waiting[0], free, len(slots.holes), largest, 1 - largest / free))
        most = max(most, len(running))
        num_steps += 1
        for index, (start, end) in [*running.items()]:
            if end == num_steps:
                slots.release(start, lengths[index])
                del running[index]
    assert (flow.steps, flow.max_running) == (num_steps, most)
    assert flow.refused_steps == len(short) > 10
    assert flow.refused_requests == len({index for index, *_ in short})
    means = np.mean([each[1:] for each in short], axis=0)
    figures = (flow.free_slots, flow.holes, flow.largest_hole, flow.external_fragmentation)
    assert figures == pytest.approx(tuple(means))


def test_the_usual_requests() -> None:
    lengths = NormalLengths().draw(0, 200)
    figures: Any = plain(FirstFitFlow.of(lengths, 10 * 2048))
    assert figures["generated_tokens"] == sum(n - (n + 1) // 2 + 1 for n in lengths)
    assert figures["preemptions"] == 0
    assert 0.7 < figures["utilization"] < 0.8  # pieces are half full at first, and full at the end
    assert 0 < figures["refused_steps"] < figures["steps"]
    assert 0 < figures["external_fragmentation"] < 1
    assert figures["largest_hole"] < figures["free_slots"]
    assert {"step", "running", "waiting", "blocks_used", "tokens"} == set(figures["timeline"][0])
