"""PoolSplit: what each group of layers gets, by hand; and what a plan says of its rows."""

import pytest

from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.pool_sizing import PoolDemand, PoolSplit, num_pinned_blocks
from pagedrun.paged.values.planned_request import BranchPoint
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

SIZE, BUDGET = 4, 12
PLENTY = 2**40


def spec(num_layers: int, window: int | None) -> KVCacheSpec:
    """A group whose blocks take 32 bytes a layer."""
    return KVCacheSpec(num_layers, 1, 1, "float32", window)


FULL, WINDOW, NO_LAYERS = spec(1, None), spec(5, 9), spec(0, None)


def split(demand: PoolDemand, *specs: KVCacheSpec, max_num_seqs: int = 6) -> PoolSplit:
    return PoolSplit(
        specs or (FULL, WINDOW),
        SIZE,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=BUDGET,
        demand=demand,
    )


# A window of 9 tokens reaches 8 back: 2 blocks, and 2 for its edges; two steps of 3 blocks each.
@pytest.mark.parametrize(
    ("demand", "windowed"),
    [
        (PoolDemand(longest=100, mean=100, largest=100), 6 * 4 + 6),
        (PoolDemand(longest=100, mean=100, largest=100, pinned={9: 11}), 6 * 4 + 6 + 11),
        (PoolDemand(longest=100, mean=100, largest=100, num_sequences=2), 2 * 4 + 6),
        (PoolDemand(longest=3, mean=3, largest=3), 6 * 3),  # shorter than the window
        (PoolDemand(longest=100, mean=100, largest=300, num_together=10), 10 * 4 + 6),
    ],
)
def test_a_group_with_a_window_gets_what_it_can_use(demand: PoolDemand, windowed: int) -> None:
    assert split(demand).beside(2000, PLENTY) == (2000, windowed)
    assert split(demand).within(PLENTY, 2000) == (2000, windowed)


@pytest.mark.parametrize(
    ("num_blocks", "windowed"),
    [(2000, 30), (300, 18), (299, 14), (100, 10), (9, 7), (5, 5), (1, 1)],
)
def test_windows_follow_the_number_of_blocks(num_blocks: int, windowed: int) -> None:
    """As many sequences as the first group has room for, and never more than that has."""
    demand = PoolDemand(longest=100, mean=100, largest=100)
    assert split(demand).beside(num_blocks, PLENTY) == (num_blocks, windowed)


def test_memory_is_cut_for_as_many_sequences_as_it_has_room_for() -> None:
    """Blocks take 32 and 160 bytes; three sequences take 300 and 18 of them."""
    demand = PoolDemand(longest=100, mean=100, largest=100)
    three = 300 * 32 + 18 * 160
    assert split(demand).within(three, 10**6) == (300, 18)
    assert split(demand).within(three + 3 * 32, 10**6) == (303, 18)
    assert split(demand).within(three - 1, 10**6) == (300 + 4 * 160 // 32 - 1, 14)
    assert split(demand).within(PLENTY, 10**6) == (10**6, 30)


def test_where_memory_is_short_one_row_can_still_go_on() -> None:
    """Nothing is kept for later rows then, and of two steps' chunks only one is there."""
    demand = PoolDemand(longest=50, mean=50, largest=50, pinned={9: 40})
    least = 50 * 32 + (4 + 3) * 160
    assert split(demand).within(least, 10**6) == (50, 7)
    assert split(demand).within(32 + 160, 10**6) == (1, 1)
    assert split(demand).within(32 + 159, 10**6) == (0, 0)
    assert split(demand).beside(50, least) == (50, 7)


def test_all_memory_is_used_and_no_more() -> None:
    pools = split(PoolDemand(longest=40, mean=17.5, largest=60, num_together=2, pinned={9: 8}))
    for num_bytes in range(192, 20_000, 97):
        sizes = pools.within(num_bytes, 500)
        left = num_bytes - pools.num_bytes(sizes)
        assert left >= 0
        assert left < 32 + 160 or sizes[0] == 500


def test_groups_without_a_window_are_of_one_size() -> None:
    demand = PoolDemand(longest=100, mean=100, largest=100)
    assert split(demand, FULL, WINDOW, spec(2, None)).within(PLENTY, 700) == (700, 30, 700)


def test_a_group_without_layers_takes_no_memory() -> None:
    """All layers have windows: the first group only names blocks, and has as many as asked."""
    demand = PoolDemand(longest=100, mean=100, largest=100)
    pools = split(demand, NO_LAYERS, WINDOW)
    assert pools.first_is_free
    assert pools.within(160 * 22, 5000) == (5000, 22)
    assert pools.within(160 * 7, 5000) == (5000, 7)


def plan_of(prompts: list[list[int]], max_tokens: int = 5, beam_width: int = 1) -> Plan:
    params = SamplingParams(
        max_tokens=max_tokens, temperature=float(beam_width == 1), beam_width=beam_width
    )
    requests = [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]
    return Plan(requests, PlanRules(SIZE))


def test_what_a_plan_takes() -> None:
    """10 + 5 - 1 tokens are 4 blocks; the other row, of 13, finds 2 of its 4."""
    demand = PoolDemand.of(plan_of([[1] * 8 + [2, 2], [1] * 8 + [3]]), [5], is_whole=True)
    assert demand == PoolDemand(
        longest=4, mean=3.0, largest=4, num_together=1, num_sequences=2, pinned={5: 2}, num_shared=2
    )
    following = PoolDemand.of(plan_of([[1] * 8]), [], is_whole=False)
    assert following.num_sequences is None


def test_beams_run_together() -> None:
    demand = PoolDemand.of(plan_of([[1] * 9], 8, beam_width=3), [5], is_whole=True)
    assert demand.largest == 2 + 2 * 3  # 16 tokens: two blocks of the prompt are whole
    assert (demand.num_together, demand.num_sequences) == (3, 3)


def test_nothing_to_run_takes_the_least() -> None:
    demand = PoolDemand.of(plan_of([]), [9], is_whole=True)
    assert split(demand).beside(50, PLENTY) == (50, 1)


@pytest.mark.parametrize(
    ("window", "pinned"),
    [(1, 3), (4, 3), (5, 3 + 3), (9, 3 + 3 + 2), (24, 6 + 2 + 3), (100, 12)],
)
def test_what_waits_behind_branch_points(window: int, pinned: int) -> None:
    """Points behind 3, 5 and 12 blocks of 4 tokens: of each what the window reaches back to, once.

    A window of 5 reaches two blocks back from a point, one of 9 three.
    """
    path = BranchPoint(12, BranchPoint(5, BranchPoint(3, BranchPoint(0, None))))
    assert path.next is not None
    assert num_pinned_blocks([path.next, path], window, SIZE) == pinned
