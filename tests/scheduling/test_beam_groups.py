"""Beams whose search is played by hand: what they share, copy, give back and leave in the log."""

import random
from collections.abc import Sequence as Seq

import pytest

from pagedrun.paged.cache.block_pool import SwapSpace, TransferKind
from pagedrun.paged.metrics.inspection import InspectionQuery, inspect_run
from pagedrun.paged.metrics.recorder import Recorder
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.scheduling.beam_search import NextBeam
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.scheduling.states import StatePool
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.admit_all import AdmitAll
from tests.support.fake_model import FakeModel, RecordingPool
from tests.support.fake_states import FakeStates
from tests.support.step import Step

SIZE = 4


class PlayedBeams:
    """A scheduler of rows with beams; whoever plays says which beams go on."""

    def __init__(
        self,
        *requests: Request,
        num_blocks: int = 32,
        budget: int = 64,
        mode: PreemptionMode = PreemptionMode.SWAP,
        windows: dict[int | None, int] | None = None,
        num_slots: int = 0,
    ) -> None:
        """windows: blocks by window, of further groups of layers."""
        pools: dict[int | None, int] = {None: num_blocks, **(windows or {})}
        groups = [
            GroupPool(RecordingPool(count, SIZE), SwapSpace(num_blocks), window)
            for window, count in pools.items()
        ]
        self.models = [
            FakeModel(group.pool, index, group.window)
            for index, group in enumerate(groups)
            if isinstance(group.pool, RecordingPool)
        ]
        self.pool = groups[0].pool
        limits = SchedulerLimits(16, budget)
        slots = RecordingPool(num_slots, 1) if num_slots else None
        self.states = None if slots is None else FakeStates(slots, 1)
        self.scheduler = Scheduler(
            groups,
            limits,
            mode,
            predictor=AdmitAll(),
            states=None if slots is None else StatePool(slots, SwapSpace(num_slots)),
        )
        keeps = 1 if num_slots else None
        plan = Plan(list(requests), PlanRules(SIZE, min_state_tokens=keeps))
        self.scheduler.add(plan, len(plan))
        self.recorder = Recorder(self.pool, self.scheduler.residency)
        self.num_steps = 0
        self.books: list[list[int]] = []

    def compute(self) -> StepInput:
        """Schedule a step and draw its tokens, none of which is known."""
        self.scheduler.begin_step()
        step = self.scheduler.schedule()
        made = Step.of(step, self.scheduler)
        for model in self.models:
            model.run(made)
        if self.states is not None:
            self.states.run(made)
        self.scheduler.update()
        self.scheduler.check()
        return step

    def branch(self, row: int, *parents: int) -> None:
        """Let beams go on, each with a token of its own."""
        beams = [NextBeam(parent, 100 + rank) for rank, parent in enumerate(parents)]
        self.scheduler.branch(row, beams)
        self.scheduler.check()

    def note(self) -> None:
        self.num_steps += 1
        self.recorder.note_step(self.num_steps, float(self.num_steps))
        self.books.append(list(self.pool.ref_counts))

    def step(self, *parents: int) -> StepInput:
        """Compute a step of row 0 and let its beams go on."""
        step = self.compute()
        self.branch(0, *parents)
        self.note()
        return step

    def snapshot(self) -> Snapshot:
        return self.recorder.snapshot(bytes_per_token=8)


def request(index: int, num_prompt: int, width: int, max_tokens: int = 30) -> Request:
    params = SamplingParams(beam_width=width, max_tokens=max_tokens, ignore_eos=True)
    return Request(index, tuple(range(50 * index, 50 * index + num_prompt)), params)


def copies(step: StepInput) -> int:
    return sum(each.kind is TransferKind.COPY for each in step.transfers)


def test_forks_copies_and_deaths_of_two_beams() -> None:
    """Block size 4, a prompt of 5: each number here was counted by hand."""
    played = PlayedBeams(request(0, 5, width=2))
    counts, pool = played.scheduler.counts, played.pool
    played.step(0, 0)  # token 5: the prompt's two blocks are those of both beams
    assert (counts.forks, pool.counts.copies, pool.num_held, pool.num_shared) == (1, 0, 2, 2)
    first = played.step(0, 1)  # each writes token 5 into block 1: one copies it
    assert (counts.forks, copies(first), pool.num_held, pool.num_shared) == (1, 1, 3, 1)
    second = played.step(1, 1)  # the first dies with its block, the second forks
    assert (counts.forks, copies(second), pool.num_held, pool.num_shared) == (2, 0, 2, 2)
    third = played.step(0, 1)
    assert (counts.forks, copies(third), pool.num_held, pool.num_shared) == (2, 1, 3, 1)
    fourth = played.step(0, 1)  # a block of its own for each, with nothing to copy
    assert (copies(fourth), pool.num_held, pool.num_shared) == (0, 5, 1)
    played.step(0, 0)  # the second dies with two blocks
    assert (counts.forks, pool.num_held, pool.num_shared) == (3, 3, 3)
    assert (pool.counts.copies, pool.counts.peak_shared) == (2, 3)

    found = inspect_run(played.snapshot(), None, InspectionQuery("6", rows=(0,)))
    assert found["beams"] == {"rows": 1, "forked": 3, "died": 2, "freed": 3}
    [row] = found["rows"]
    assert row["beams"] is not None
    assert [(each["step"], each["forked"], each["died"]) for each in row["beams"]["events"]] == [
        (1, 1, 0),
        (3, 1, 1),
        (6, 1, 1),
    ]
    assert [each["freed"] for each in row["beams"]["events"]] == [0, 1, 2]
    assert row["shared"] == [{"samples": [0, 1], "first": 0, "last": 2}]


def test_what_beams_share_is_said_by_the_places_in_their_tables() -> None:
    played = PlayedBeams(request(0, 8, width=3))
    played.step(0, 0, 0)
    for _ in range(4):
        played.step(0, 1, 2)  # block 2 is each one's own
    played.step(0, 0, 1)  # the third dies; the first forks in the middle of block 3
    tables = inspect_run(played.snapshot(), None, InspectionQuery("last", rows=(0,)))["rows"][0]
    assert tables["shared"] == [
        {"samples": [0, 1, 2], "first": 0, "last": 1},
        {"samples": [0, 2], "first": 2, "last": 3},
    ]
    assert not any(block["copied"] for each in tables["tables"] for block in each["blocks"])
    played.step(0, 1, 2)  # the first and its child write into block 3: one has a copy
    [row] = inspect_run(played.snapshot(), None, InspectionQuery("last", rows=(0,)))["rows"]
    copied = [
        (each["sample"], block["logical"])
        for each in row["tables"]
        for block in each["blocks"]
        if block["copied"]
    ]
    assert len(copied) == 1
    assert copied[0][1] == 3


def ref_counts_of(snapshot: Snapshot, step: int) -> list[int]:
    held = snapshot.holdings
    counts = [0] * snapshot.num_blocks
    for entry in range(len(held)):
        counts[held.block[entry]] += int(held.begin[entry] <= step < held.end[entry])
    return counts


def play(
    played: PlayedBeams, rows: Seq[int], num_steps: int, seed: int, *, calm: float = 0.0
) -> None:
    """Let beams fork and die as chance will have it; all of a row are always in a step together.

    calm: the share of steps in which each beam goes on by itself, so that all part early.
    """
    chance = random.Random(seed)
    scheduler = played.scheduler
    for _ in range(num_steps):
        step = played.compute()
        assert step.num_chunks
        drawn = [
            (int(row), int(sample))
            for row, sample in zip(step.draws.row, step.draws.sample, strict=True)
        ]
        for row in rows:
            mine = {sample for each, sample in drawn if each == row}
            if not mine:
                continue
            beams = scheduler.beams(row)
            assert mine == {each.sample_index for each in beams}
            width = beams[0].request.params.beam_width
            parents = sorted(chance.choices(range(len(beams)), k=width))
            if chance.random() < calm and len(beams) == width:
                parents = list(range(width))
            played.branch(row, *parents)
        played.note()


@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize(("num_blocks", "budget"), [(64, 64), (64, 5), (16, 9)])
def test_the_log_has_every_reference_of_the_pool(
    mode: PreemptionMode, num_blocks: int, budget: int
) -> None:
    """Whoever died, forked in another's place, or gave way; and all of a row run in one step."""
    rows = [request(0, 9, width=3), request(1, 4, width=2), request(2, 6, width=4)]
    played = PlayedBeams(*rows, num_blocks=num_blocks, budget=budget, mode=mode)
    play(played, range(3), num_steps=24, seed=num_blocks + budget)
    snapshot = played.snapshot()
    for step, books in enumerate(played.books, 1):
        assert ref_counts_of(snapshot, step) == books
    forked = int(snapshot.branchings.forked.sum())
    assert forked == played.scheduler.counts.forks > 20
    gave_way = len(played.scheduler.residency.preemptions.items)
    assert (gave_way > 0) == (num_blocks == 16)


def play_behind_windows(seed: int) -> PlayedBeams:
    """Rows with beams in pools from just enough for one row to room for all."""
    pick = random.Random(seed)
    rows = [
        request(index, pick.randint(1, 12), width=pick.randint(2, 4), max_tokens=40)
        for index in range(4)
    ]
    widest = max(row.params.beam_width for row in rows)
    budget = pick.choice([1, 3, 5, 9, 40])
    played = PlayedBeams(
        *rows,
        num_blocks=pick.randint(3 + 4 * 7, 40),
        budget=budget,
        mode=pick.choice(list(PreemptionMode)),
        windows={
            window: widest * (-(-window // SIZE) + 3) + 2 * -(-budget // SIZE) + pick.randint(4, 14)
            for window in pick.sample([1, 2, 3, 5, 8, 13, 30], k=pick.choice([1, 2]))
        },
    )
    play(played, range(len(rows)), num_steps=24, seed=seed, calm=0.9)
    return played


def test_beams_read_their_own_tokens_where_layers_have_windows() -> None:
    """Also those that are folded, and go on where blocks were given back behind the first."""
    played = [play_behind_windows(seed) for seed in range(12)]
    preempted = sum(len(each.scheduler.residency.preemptions.items) for each in played)
    assert preempted > 3


def test_beams_that_come_back_one_after_another_keep_their_ranks() -> None:
    """The worst parted long before the second, and so comes back first; the search knows them by
    their ranks."""
    played = PlayedBeams(
        request(0, 4, width=3), budget=4, mode=PreemptionMode.RECOMPUTE, windows={6: 40}
    )
    scheduler, pool = played.scheduler, played.pool
    each_goes_on = (0, 1, 2)
    for parents in [(0, 0, 0), *[each_goes_on] * 4, (0, 0, 2), *[each_goes_on] * 2]:
        played.step(*parents)
    taken = pool.allocate(pool.num_free)
    assert taken is not None
    while scheduler.running:
        wanted = [each.known_outputs() for each in scheduler.beams(0)]
        if scheduler.schedule().num_chunks:
            scheduler.update()
            scheduler.branch(0, [NextBeam(rank, 100 + rank) for rank in each_goes_on])
    pool.release(taken)
    seen = []
    while not len(played.compute().draws):
        seen.append([each.known_outputs() for each in scheduler.beams(0)])
    assert [wanted[0], wanted[2]] in seen
    assert [each.known_outputs() for each in scheduler.beams(0)] == wanted


@pytest.mark.long
def test_beams_read_their_own_tokens_where_layers_have_windows_long() -> None:
    for seed in range(100, 900):
        play_behind_windows(seed)


def test_beams_of_one_row_cannot_fill_the_log() -> None:
    """A fork takes what differs from the beam that died, not a whole block table."""
    played = PlayedBeams(request(0, 200, width=4, max_tokens=60), num_blocks=300, budget=256)
    play(played, [0], num_steps=50, seed=1)
    forks = played.scheduler.counts.forks
    assert forks > 60
    assert sum(map(len, played.scheduler.residency)) < 4 * 65 + 6 * forks


@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize(("num_blocks", "num_slots"), [(64, 32), (64, 7), (16, 32)])
def test_a_beam_goes_on_from_the_state_of_its_parent(
    mode: PreemptionMode, num_blocks: int, num_slots: int
) -> None:
    """Whoever forked, took a dead one's place, or gave way for want of blocks or slots."""
    rows = [request(0, 9, width=3), request(1, 4, width=2), request(2, 6, width=4)]
    played = PlayedBeams(*rows, num_blocks=num_blocks, mode=mode, num_slots=num_slots)
    play(played, range(3), num_steps=24, seed=num_blocks + num_slots)
    gave_way = len(played.scheduler.residency.preemptions.items)
    assert (gave_way > 0) == (num_blocks == 16 or num_slots == 7)
