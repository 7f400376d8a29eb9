"""The cache that knows the future, against one that guesses from the past, and against the best.

The rows of a plan are run one after the other (each is gone before the next one comes), as an LRU
cache of the same size would run them: how many blocks does either find again?
"""

from collections import OrderedDict
from collections.abc import Sequence as Seq

from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.cache.block_pool import BlockPool, SwapSpace
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.scheduling.kv_groups import GroupPool
from pagedrun.paged.scheduling.scheduler import Scheduler, SchedulerLimits
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

SIZE = 2
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=16), min_size=1, max_size=14)


def requests_of(prompts: list[list[int]]) -> list[Request]:
    params = SamplingParams(max_tokens=1, temperature=1.0)
    return [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]


def exact_hits(plan: Plan, num_blocks: int) -> tuple[int, int]:
    """Return hits and evictions of the scheduler with one row at a time."""
    pool = BlockPool(num_blocks, SIZE)
    limits = SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=64)
    scheduler = Scheduler([GroupPool(pool, SwapSpace(0))], limits)
    scheduler.add(plan, len(plan))
    later = [sequence.request.prompt_token_ids for sequence in plan]
    while scheduler.has_work:
        scheduler.schedule()
        later.pop(0)
        [place] = scheduler.update(1).tolist()
        sequence = scheduler.sequence_at(place)
        scheduler.finish(sequence)
        scheduler.check()
        needed = {p[:end] for p in later for end in range(SIZE, len(p) + 1, SIZE)}
        done = sequence.request.prompt_token_ids
        own = {done[:end] for end in range(SIZE, len(done) + 1, SIZE)}
        assert pool.num_cached <= len(needed & own), "a block is kept after its last use"
        if not pool.counts.evictions:
            assert pool.num_cached == len(needed & own), "a block was lost before its last use"
    assert pool.num_cached == 0
    return pool.counts.hits, pool.counts.evictions


def lru_hits(prompts: Seq[tuple[int, ...]], num_blocks: int) -> int:
    """Return the hits of a cache that drops what was used longest ago, ends of prefixes first."""
    cached: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for prompt in prompts:
        blocks = [prompt[:end] for end in range(SIZE, len(prompt) + 1, SIZE)]
        found = 0
        while found < len(blocks) and blocks[found] in cached:
            found += 1
        hits += found
        for block in blocks[:found]:
            del cached[block]
        used = -(-len(prompt) // SIZE)
        while len(cached) + used > num_blocks:
            cached.popitem(last=False)
        cached |= dict.fromkeys(reversed(blocks))
    return hits


@given(prompts=PROMPTS, spare=st.integers(0, 12))
def test_knowing_the_future_never_finds_less_than_remembering_the_past(
    prompts: list[list[int]], spare: int
) -> None:
    num_blocks = max(-(-len(prompt) // SIZE) for prompt in prompts) + spare
    plan = Plan(requests_of(prompts), PlanRules(SIZE))
    ordered = [sequence.request.prompt_token_ids for sequence in plan]
    hits, evictions = exact_hits(plan, num_blocks)
    assert hits >= lru_hits(ordered, num_blocks)
    achievable = int(plan.tree.num_hit_blocks.sum())
    # One row at a time holds the path it needs and its own end: that always fits.
    assert (hits, evictions) == (achievable, 0)


def test_in_the_order_of_the_input_the_past_misleads() -> None:
    """So that the comparison above is one: two groups that take turns drive each other out."""
    heads = [[0] * 12, [1] * 12]
    prompts = [[*heads[i % 2], i // 2 % 2, i // 4] for i in range(8)]
    plan = Plan(requests_of(prompts), PlanRules(SIZE))
    hits, _ = exact_hits(plan, 8)
    assert hits == int(plan.tree.num_hit_blocks.sum()) == 36
    assert lru_hits([tuple(prompt) for prompt in prompts], 8) == 6
