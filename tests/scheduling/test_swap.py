"""Swapping: the host's free list, and what a preempted sequence saves and gets back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.cache.block_pool import BlockPool, BlockTransfer, SwapSpace, TransferKind
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_input import StepBuilder, StepInput
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.planned_request import BlockKey, PlannedRequest
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.admit_all import AdmitAll

SIZE = 4


@given(st.lists(st.integers(0, 6), max_size=30))
def test_host_blocks_are_taken_once_and_given_back(counts: list[int]) -> None:
    space = SwapSpace(10)
    held: list[list[int]] = []
    for count in counts:
        in_use = sum(map(len, held))
        got = space.take(count)
        if in_use + count > 10:
            assert got is None
            assert space.num_free == 10 - in_use
            if held:
                space.give_back(held.pop(0))
        else:
            assert got is not None
            held.append(got)
        everything = [block_id for blocks in held for block_id in blocks]
        assert len(everything) == len(set(everything)) == 10 - space.num_free
        assert set(everything) <= set(range(10))


def planned(index: int, prompt: list[int], max_tokens: int = 8, n: int = 1) -> PlannedRequest:
    params = SamplingParams(max_tokens=max_tokens, n=n)
    keys = BlockKey.chain(prompt, SIZE)
    request = Request(index, tuple(prompt), params)
    return PlannedRequest(request, index, tuple(keys), num_keep_blocks=len(keys))


def start(
    requests: list[PlannedRequest],
    num_blocks: int,
    swap_blocks: int,
    mode: PreemptionMode = PreemptionMode.SWAP,
) -> Scheduler:
    limits = SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=64)
    scheduler = Scheduler(
        [GroupPool(BlockPool(num_blocks, SIZE), SwapSpace(swap_blocks))],
        limits,
        mode,
        predictor=AdmitAll(),
    )
    scheduler.add(requests, len(requests))
    return scheduler


def step(scheduler: Scheduler) -> StepInput:
    """One step of a model that always says 1."""
    made = scheduler.schedule()
    scheduler.update(1)
    scheduler.check()
    return made


def both(scheduler: Scheduler) -> tuple[Sequence, Sequence]:
    """The two sequences of a run, the older one first."""
    every = [*scheduler.running, *scheduler.waiting]
    old, young = sorted(every, key=lambda each: each.request.index)
    return old, young


def step_until_preempted(scheduler: Scheduler) -> StepInput:
    for _ in range(50):
        batch = step(scheduler)
        if any(scheduler.counts.preemptions.values()):
            return batch
    raise AssertionError("nothing was preempted")


def test_only_what_nobody_else_keeps_is_saved() -> None:
    """The prefix that the older sequence holds too is not copied to the host."""
    prefix = [7] * SIZE
    requests = [planned(0, [*prefix, 8, 8, 8, 8]), planned(1, [*prefix, 9])]
    scheduler = start(requests, num_blocks=5, swap_blocks=8)
    batch = step_until_preempted(scheduler)
    old, young = both(scheduler)
    shared = old.block_table[0]
    assert list(young.host_blocks) == [1, 2]
    sources = [t.source for t in batch.transfers if t.kind is TransferKind.SWAP_OUT]
    assert len(sources) == 2
    assert shared not in sources

    scheduler.finish(old)
    batch = step(scheduler)
    restored = [t for t in batch.transfers if t.kind is TransferKind.SWAP_IN]
    assert [t.target for t in restored] == young.block_table[1:3]
    assert young.block_table[0] == shared
    assert young.host_blocks == {}
    assert scheduler.swap_space.num_free == 8
    assert scheduler.counts.recomputed_tokens == 0


def test_a_shared_prefix_evicted_meanwhile_is_computed_again() -> None:
    """A sequence that relied on another's prefix must not come back with a hole in it."""
    prefix = [7] * SIZE
    requests = [planned(0, [*prefix, 8, 8, 8, 8]), planned(1, [*prefix, 9])]
    scheduler = start(requests, num_blocks=5, swap_blocks=8)
    step_until_preempted(scheduler)
    old, young = both(scheduler)
    num_tokens = young.num_tokens
    scheduler.finish(old)
    everything = scheduler.pool.allocate(5)  # evicts the prefix
    assert everything is not None
    scheduler.pool.release(everything)
    batch = step(scheduler)
    assert not batch.transfers
    chunk = [int(each[0]) for each in (batch.starts, batch.ends, batch.store_from)]
    assert (batch.num_chunks, chunk) == (1, [0, num_tokens, 0])
    assert scheduler.swap_space.num_free == 8
    assert scheduler.counts.recomputed_tokens == num_tokens - 1


def test_a_prefix_found_again_is_not_restored_from_the_host() -> None:
    """A block that stayed in the pool is shared; the saved copy is dropped."""
    requests = [planned(0, [8] * SIZE), planned(1, [9] * SIZE)]
    scheduler = start(requests, num_blocks=3, swap_blocks=8)
    batch = step_until_preempted(scheduler)
    old, young = both(scheduler)
    assert [t.kind for t in batch.transfers] == [TransferKind.SWAP_OUT]
    [cached] = scheduler.pool.match(young.block_keys)
    scheduler.finish(old)
    batch = step(scheduler)
    assert not batch.transfers
    assert young.block_table[0] == cached
    assert scheduler.swap_space.num_free == 8


@pytest.mark.parametrize("swap_blocks", [0, 1])
def test_without_room_on_the_host_a_sequence_is_recomputed(swap_blocks: int) -> None:
    requests = [planned(0, [8] * SIZE), planned(1, [9])]
    scheduler = start(requests, num_blocks=4, swap_blocks=swap_blocks)
    batch = step_until_preempted(scheduler)
    _, young = both(scheduler)
    assert not batch.transfers
    assert scheduler.counts.preemptions == {
        PreemptionMode.SWAP: 0,
        PreemptionMode.RECOMPUTE: 1,
    }
    assert (young.num_computed_tokens, young.num_stored_tokens) == (0, 0)
    assert scheduler.swap_space.num_free == swap_blocks  # taken whole or not at all


def test_recompute_mode_moves_nothing() -> None:
    requests = [planned(0, [8] * SIZE), planned(1, [9])]
    scheduler = start(requests, 4, 8, PreemptionMode.RECOMPUTE)
    assert step_until_preempted(scheduler).transfers == ()
    assert scheduler.swap_space.num_free == 8


def test_a_sequence_that_ends_while_swapped_out_frees_its_host_blocks() -> None:
    requests = [planned(0, [8] * SIZE), planned(1, [9])]
    scheduler = start(requests, num_blocks=4, swap_blocks=8)
    step_until_preempted(scheduler)
    _, young = both(scheduler)
    assert scheduler.swap_space.num_free == 6
    scheduler.finish(young)
    assert scheduler.swap_space.num_free == 8
    assert list(scheduler.waiting) == []
    scheduler.check()


def test_samples_that_share_all_blocks_come_back_on_their_own() -> None:
    """A sibling holds the half-filled block too; it is saved, since no prompt can find it."""
    scheduler = start([planned(0, [5] * (SIZE + 1), n=2)], num_blocks=5, swap_blocks=8)
    step(scheduler)
    [parent, child] = scheduler.running
    assert parent.block_table == child.block_table
    builder = StepBuilder(scheduler.table)
    cause = scheduler._preemption.shortage(parent, parent.num_tokens)
    scheduler._preemption.preempt(scheduler.running.pop(), cause, builder, SIZE + 1)
    scheduler.waiting.appendleft(child)
    assert list(child.host_blocks) == [1]
    assert builder.transfers == [BlockTransfer(TransferKind.SWAP_OUT, parent.block_table[1], 0)]
    scheduler.check()
    batch = step(scheduler)
    assert child.block_table[0] == parent.block_table[0]
    assert child.block_table[1] != parent.block_table[1]
    assert [(t.kind, t.target) for t in batch.transfers] == [
        (TransferKind.SWAP_IN, child.block_table[1])
    ]
    assert scheduler.counts.recomputed_tokens == 0
