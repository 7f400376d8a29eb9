"""Single behaviours of the scheduler, and bugs that small paged engines are known to have."""

import random

import numpy as np
import pytest

from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace, TransferKind
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.values.engine_config import PreemptionMode
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.drive import (
    RECOMPUTE,
    SWAP,
    Drive,
    OneBlockEach,
    WorstCase,
    lengths,
    request,
    roomy,
)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@pytest.mark.parametrize("caching", [True, False])
def test_a_prompt_of_exactly_one_block(size: int, caching: bool) -> None:
    """nano-vllm#114: a zero-length forward pass, and a table one block short."""
    drive = Drive([request(0, range(size))], size, num_blocks=8, prefix_caching=caching)
    first = drive.step()
    assert lengths(first) == [size]
    assert first.chunks[0].samples
    assert drive.pool.num_held == 1
    drive.finish()


@pytest.mark.parametrize("num_blocks_of_prompt", [1, 3])
def test_a_prompt_found_whole_computes_one_token_and_writes_none(num_blocks_of_prompt: int) -> None:
    """nano-vllm#114: without a computed token there are no logits to sample from."""
    prompt = range(4 * num_blocks_of_prompt)
    requests = [request(0, prompt, max_tokens=1), request(1, prompt, max_tokens=1)]
    drive = Drive(requests, 4, num_blocks=8, max_num_seqs=1)
    drive.step()
    written = drive.model.written_tokens
    [chunk] = drive.step().chunks
    assert (chunk.start, chunk.end) == (len(prompt) - 1, len(prompt))
    assert chunk.store_from == len(prompt)
    assert drive.model.written_tokens == written
    assert drive.scheduler.counts.cached_tokens == len(prompt) - 1
    drive.finish()


def test_the_token_after_a_prompt_found_whole_gets_its_own_block() -> None:
    """The next token must neither be lost nor land in the shared last block."""
    drive = Drive([request(i, range(8)) for i in range(3)], 4, num_blocks=16)
    assert lengths(drive.step()) == [8, 1, 1]
    second = drive.step()
    targets = [chunk.sequence.block_table[2] for chunk in second.chunks]
    assert len(set(targets)) == 3
    assert [chunk.store_from for chunk in second.chunks] == [8, 8, 8]
    assert drive.pool.num_shared == 2
    drive.finish()


def test_a_prefix_is_computed_once_within_one_step() -> None:
    """vllm#9643 computed it twice; vllm#29387 read it before it was written: the fake would see."""
    prefix = list(range(8))
    drive = Drive([request(i, [*prefix, 10 + i, 20 + i]) for i in range(4)], 4, num_blocks=32)
    batch = drive.step()
    assert lengths(batch) == [10, 2, 2, 2]
    assert drive.pool.num_shared == 2
    assert drive.scheduler.counts.cached_tokens == 24 == drive.plan.sharing.achievable_hit_tokens
    drive.finish()


def test_a_prefix_cut_by_the_budget_is_shared_when_it_is_complete() -> None:
    """A row is not let in beside a half-computed prefix, which it would have to compute again."""
    drive = Drive([request(i, range(12)) for i in range(2)], 4, num_blocks=16, budget=5)
    assert lengths(drive.step()) == [5]
    assert lengths(drive.step()) == [5]
    assert lengths(drive.step()) == [2, 1]
    drive.finish()


@pytest.mark.parametrize("mode", [SWAP, RECOMPUTE])
def test_preempted_one_token_past_a_block_and_admitted_again(mode: PreemptionMode) -> None:
    """nano-vllm#217: a stale length after the sequence came back."""
    drive = Drive(
        [request(0, [1] * 4), request(1, [2] * 4)], 4, 3, mode=mode, predictor=OneBlockEach()
    )
    drive.step()
    drive.step()
    [victim] = drive.scheduler.waiting
    assert victim.num_tokens == 4 + 1
    assert drive.scheduler.counts.preemptions[mode] == 1
    drive.finish()
    # Its one full block is a published prompt block. Swapped out, it is restored or found again;
    # after the block was reused, the four prompt tokens are computed once more.
    assert drive.scheduler.counts.recomputed_tokens <= 4


def test_a_cached_prefix_that_grows_while_a_sequence_waits() -> None:
    """nano-vllm#233: the hits of an earlier look are not those of the admission."""
    prompt = list(range(12))
    # The pool cannot hold both at first; the second looks at the cache again in every step.
    drive = Drive([request(0, prompt), request(1, prompt)], 4, num_blocks=5, budget=4)
    drive.finish()
    assert drive.scheduler.counts.cached_tokens == 11


def test_a_request_that_can_never_fit_is_not_added() -> None:
    drive = Drive([request(0, range(8), max_tokens=9), request(1, range(8), max_tokens=10)], 4, 4)
    assert drive.refused == {1}  # 8 + 9 stored tokens need a fifth block, 8 + 8 do not
    drive.finish()
    unchecked = Plan(drive.requests, PlanRules(4))
    groups = [GroupPool(BlockPool(4, 4), SwapSpace(0))]
    scheduler = Scheduler(groups, SchedulerLimits(8, 64), SWAP)
    scheduler.add(unchecked, len(unchecked))
    with pytest.raises(ValueError, match="longer than the pool"):
        scheduler.schedule()


@pytest.mark.parametrize("size", [1, 4, 16])
def test_more_samples_than_sequences_may_run(size: int) -> None:
    drive = Drive([request(0, range(6), max_tokens=5, n=4)], size, num_blocks=16, max_num_seqs=1)
    drive.step()
    assert len(drive.scheduler.running) == 1
    assert len(drive.scheduler.waiting) == 3
    drive.finish()
    assert len(drive.outputs) == 4
    assert drive.scheduler.counts.prompt_tokens == 6  # asked once, not once a sample


def test_samples_share_the_prompt_until_they_write() -> None:
    drive = Drive([request(0, range(6), n=3)], 4, num_blocks=16)
    assert lengths(drive.step()) == [6]  # the prompt is computed once for all three
    assert drive.pool.num_held == 2
    assert drive.pool.num_shared == 2
    batch = drive.step()
    # Two of the three copy the half-filled block; the last one has it to itself by then.
    assert [each.kind for each in batch.input.transfers] == [TransferKind.COPY] * 2
    assert drive.pool.num_held == 4
    assert drive.pool.num_shared == 1
    drive.finish()
    assert drive.scheduler.counts.forks == 2


def test_samples_that_end_with_a_block_copy_nothing() -> None:
    drive = Drive([request(0, range(8), n=4)], 4, num_blocks=32).finish()
    assert drive.pool.counts.copies == 0


def test_a_block_swapped_out_is_saved_before_its_next_owner_writes() -> None:
    """The victim's block goes to the older sequence in the very step in which it is saved."""
    drive = Drive(
        [request(0, [1] * 4, 12), request(1, [2], 12)],
        4,
        4,
        swap_blocks=4,
        predictor=OneBlockEach(),
    )
    batch = drive.step()
    while not drive.scheduler.waiting:
        batch = drive.step()
    assert [each.kind for each in batch.input.transfers] == [TransferKind.SWAP_OUT] * 2
    [chunk] = batch.chunks
    assert chunk.start % 4 == 0
    assert chunk.sequence.block_table[-1] in [each.source for each in batch.input.transfers]
    drive.finish()
    assert drive.model.moves[TransferKind.SWAP_IN] == 2
    assert drive.scheduler.counts.recomputed_tokens == 0


def test_nobody_overtakes_a_preempted_sequence() -> None:
    """It goes back to the head of the queue, though a younger one would fit already."""
    requests = [request(0, [1] * 4), request(1, [2] * 4), request(2, [3])]
    drive = Drive(requests, 4, num_blocks=3, predictor=OneBlockEach())
    drive.step()
    batch = drive.step()
    assert lengths(batch) == [1]
    assert [sequence.request.index for sequence in drive.scheduler.waiting] == [1, 2]
    drive.finish()


def test_nobody_is_let_in_whom_the_pool_may_not_hold_to_the_end() -> None:
    """Nothing is known of answers yet: each may grow from one block to two."""
    requests = [request(i, [i] * 4) for i in range(4)]
    drive = Drive(requests, 4, num_blocks=5)
    assert lengths(drive.step()) == [4, 4]
    drive.finish()
    assert drive.scheduler.counts.steps_short_of_memory > 0
    assert lengths(Drive(requests, 4, num_blocks=8).step()) == [4, 4, 4, 4]


def long_answers(seed: int) -> list[Request]:
    """Rows of a few templates that may say 120 tokens and mostly say far fewer."""
    pick = random.Random(seed)
    heads = [pick.choices(range(3), k=30) for _ in range(3)]
    params = SamplingParams(temperature=1.0, max_tokens=120)
    return [
        Request(i, tuple(pick.choice(heads) + pick.choices(range(3), k=6)), params)
        for i in range(300)
    ]


@pytest.mark.heavy("a claim of the documentation: a whole run by each rule")
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_prediction_preempts_less_and_wastes_less(seed: int) -> None:
    """Answers end at random after seven tokens in the mean: a long tail, unknown beforehand."""
    requests = long_answers(seed)

    def run(predictor: OutputLengthPredictor) -> tuple[int, float, int]:
        drive = Drive(requests, 1, 250, max_num_seqs=128, budget=512, predictor=predictor).finish()
        counts = drive.scheduler.counts
        short = max(counts.steps_short_of_memory, 1)
        mean_held = counts.blocks_held_when_short / short / drive.num_blocks
        return sum(counts.preemptions.values()), mean_held, len(drive.batches)

    preempted, held, num_steps = run(OutputLengthPredictor())
    usually_preempted, _, _ = run(OneBlockEach())
    _, reserved, reserved_steps = run(WorstCase())
    assert preempted < usually_preempted / 2
    assert held >= reserved
    assert num_steps < reserved_steps


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_update_wants_a_token_for_each_draw(num_tokens: int) -> None:
    drive = Drive([request(0, [1] * 4, n=2)], 4, num_blocks=8)
    drive.scheduler.schedule()
    with pytest.raises(ValueError, match="tokens for 2 draws"):
        drive.scheduler.update(np.ones(num_tokens, dtype=np.int64))


@pytest.mark.parametrize("fails_at", [1, 2, 5])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
def test_a_failing_request_takes_all_its_samples_with_it(fails_at: int, max_num_seqs: int) -> None:
    """Running, waiting without blocks or swapped out: nothing of it is left behind."""
    requests = [request(0, range(9), 6, n=4), request(1, range(9), 6), request(2, range(5), 6, n=2)]
    drive = Drive(requests, 4, 6, max_num_seqs, fails_at={0: fails_at})
    drive.finish()
    assert drive.failed == {0}
    assert {index for index, _ in drive.outputs} >= {1, 2}


# ── What the plan promises ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("budget", [7, 64, 1000])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 40])
def test_three_nested_levels_are_filled_once(budget: int, max_num_seqs: int) -> None:
    """Company, task, examples, row: what is computed is the tree's tokens, each once."""
    pick = random.Random(3)
    company = pick.choices(range(99), k=32)
    prompts: list[list[int]] = []
    for _ in range(3):
        task = company + pick.choices(range(99), k=16)
        for _ in range(2):
            shots = task + pick.choices(range(99), k=20)
            prompts += [[*shots, 100 + i, *pick.choices(range(99), k=5)] for i in range(5)]
        prompts.append(task)  # found whole: owes the one token that gives its logits
    requests = [request(i, prompt) for i, prompt in enumerate(prompts)]
    drive = roomy(requests, 4, budget, max_num_seqs).finish()
    counts = drive.scheduler.counts
    tree = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert drive.plan.tree.num_distinct_tokens == len(tree)
    # A prompt that ends where others go on comes first, and computes what these then find.
    assert counts.prompt_tokens - counts.cached_tokens == len(tree)


def test_a_block_that_begins_alike_is_copied_not_computed() -> None:
    head = list(range(10, 16))  # a block of 4 and half of the next
    drive = Drive([request(i, [*head, 20 + i, 30 + i]) for i in range(3)], 4, 32, budget=8)
    assert lengths(drive.step()) == [8]
    batch = drive.step()
    # The first row's token, and of each other one the two tokens that are its own.
    assert lengths(batch) == [1, 2, 2]
    assert [each.kind for each in batch.input.transfers] == [TransferKind.COPY] * 2
    block_source = batch.chunks[0].sequence.block_table[1]
    assert {each.source for each in batch.input.transfers} == {block_source}
    assert drive.scheduler.counts.partial_hit_tokens == 4
    assert drive.scheduler.counts.cached_tokens == 12 == drive.plan.sharing.achievable_hit_tokens
    drive.finish()


def test_what_this_step_computes_is_not_copied() -> None:
    """Blocks move before a step is computed: there would be nothing in them."""
    head = list(range(10, 16))
    drive = Drive([request(i, [*head, 20 + i]) for i in range(3)], 4, 32)
    assert lengths(drive.step()) == [7, 3, 3]
    drive.finish()
    assert drive.scheduler.counts.partial_hit_tokens == 0


def test_without_prefix_caching_nothing_is_copied() -> None:
    head = list(range(10, 16))
    requests = [request(i, [*head, 20 + i]) for i in range(3)]
    drive = Drive(requests, 4, 32, budget=7, prefix_caching=False).finish()
    assert drive.model.moves[TransferKind.COPY] == 0
    assert drive.scheduler.counts.cached_tokens == 0


def test_a_plan_is_not_out_while_its_last_row_waits_for_memory() -> None:
    """Its prefix is pinned until it is let in: who ends the plan before takes that away."""
    rows = [request(0, range(12), max_tokens=4), request(1, [*range(8), 90, 91, 92, 93])]
    drive = Drive(rows, 4, num_blocks=4)
    drive.step()
    assert [each.request.index for each in drive.scheduler.waiting] == [1]
    assert drive.scheduler.num_planned == 0
    assert not drive.scheduler.is_out
    drive.finish()
    assert drive.scheduler.is_out
    assert drive.scheduler.counts.cached_tokens == 8
