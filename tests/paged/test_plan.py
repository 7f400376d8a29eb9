"""The plan against a walk over plain prefixes, without digests."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.paged.plan import Plan
from pagedrun.paged.request import Request
from pagedrun.paged.sampling import SamplingParams

PROMPTS = st.lists(
    st.lists(st.sampled_from([0, 1, 255, 256, 65_536]), min_size=1, max_size=20), max_size=12
)


def requests_of(prompts: list[list[int]], max_tokens: int = 4, n: int = 1) -> list[Request]:
    params = SamplingParams(max_tokens=max_tokens, n=n)
    return [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]


@given(prompts=PROMPTS, size=st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_the_walk_agrees_with_one_over_plain_prefixes(prompts: list[list[int]], size: int) -> None:
    plan = Plan.build(requests_of(prompts), size, prefix_caching=True)
    ordered = [list(sequence.request.prompt_token_ids) for sequence in plan.sequences]
    assert ordered == sorted(prompts)
    indices = [sequence.request.index for sequence in plan.sequences]
    assert sorted(indices) == list(range(len(prompts)))

    seen: dict[tuple[int, ...], int] = {}
    hit_tokens = 0
    for prompt in ordered:
        blocks = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        hits = sum(block in seen for block in blocks)
        hit_tokens += min(hits * size, len(prompt) - 1)  # the last token is always computed
        for block in blocks:
            seen[block] = seen.get(block, 0) + 1
    assert plan.achievable_hit_tokens == hit_tokens
    assert plan.num_shared_blocks == sum(count > 1 for count in seen.values())


@given(prompts=PROMPTS, size=st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_rows_that_share_a_prefix_are_neighbours(prompts: list[list[int]], size: int) -> None:
    """No row stands between two others that share more with each other than with it."""
    plan = Plan.build(requests_of(prompts), size, prefix_caching=True)
    ordered = [sequence.request.prompt_token_ids for sequence in plan.sequences]
    for length in range(1, 21):
        heads = [prompt[:length] for prompt in ordered if len(prompt) >= length]
        changes = sum(a != b for a, b in pairwise(heads))
        assert changes == max(len(set(heads)) - 1, 0)


def test_equal_prompts_keep_the_order_of_the_input() -> None:
    requests = requests_of([[5], [3], [5], [3], [5]])
    plan = Plan.build(requests, 4, prefix_caching=True)
    assert [sequence.request.index for sequence in plan.sequences] == [1, 3, 0, 2, 4]


def test_token_ids_are_ordered_as_numbers() -> None:
    """As little-endian bytes 256 would come before 1."""
    plan = Plan.build(requests_of([[256], [1], [65_536], [2], [1, 0]]), 4, prefix_caching=True)
    prompts = [sequence.request.prompt_token_ids for sequence in plan.sequences]
    assert prompts == [(1,), (1, 0), (2,), (256,), (65_536,)]


def test_private_blocks_by_hand() -> None:
    """Block size 4. A: 10 + 5 - 1 = 14 tokens, 4 blocks. B shares A's first two."""
    shared = [1] * 8
    plan = Plan.build(requests_of([[*shared, 2, 2], [*shared, 3]], 5), 4, prefix_caching=True)
    assert plan.num_private_blocks == (4, 2)  # B's 13 tokens: 4 blocks less 2 hits
    assert plan.num_shared_blocks == 2
    assert plan.achievable_hit_tokens == 8
    # Two at once: the shared two, all private ones, and one to grow into for each.
    assert plan.num_blocks_needed(2) == 2 + 6 + 2
    assert plan.num_blocks_needed(100) == plan.num_blocks_needed(2)
    assert plan.num_blocks_needed(1) == 2 + 4 + 1


def test_samples_share_full_prompt_blocks_only() -> None:
    """10 tokens: two full blocks once, and the half-filled third and the fourth for each sample."""
    plan = Plan.build(requests_of([[1] * 10], 5, n=3), 4, prefix_caching=True)
    assert plan.num_private_blocks == (2 + 3 * 2,)


def test_a_prompt_repeated_whole_computes_its_last_token() -> None:
    plan = Plan.build(requests_of([[7] * 8, [7] * 8], 1), 4, prefix_caching=True)
    assert plan.achievable_hit_tokens == 7
    assert plan.num_private_blocks == (2, 0)


def test_without_prefix_caching_nothing_is_shared() -> None:
    plan = Plan.build(requests_of([[7] * 8, [7] * 8], 1), 4, prefix_caching=False)
    assert (plan.achievable_hit_tokens, plan.num_shared_blocks) == (0, 0)
    assert plan.num_private_blocks == (2, 2)
    assert all(sequence.block_keys == [] for sequence in plan.sequences)


def test_nothing_to_plan() -> None:
    plan = Plan.build([], 4, prefix_caching=True)
    assert plan.sequences == ()
    assert plan.num_blocks_needed(8) == 0


def test_a_sequence_starts_with_all_samples_of_its_request() -> None:
    [sequence] = Plan.build(requests_of([[1, 2]], n=3), 4, prefix_caching=True).sequences
    assert sequence.pending_samples == (0, 1, 2)
    assert sequence.block_table == []
