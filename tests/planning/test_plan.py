"""The plan against a walk over plain prefixes, without digests."""

import pickle
import random
from collections.abc import Sequence as Seq
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.values.planned_request import BlockKey
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

PROMPTS = st.lists(
    st.lists(st.sampled_from([0, 1, 255, 256, 65_536]), min_size=1, max_size=20), max_size=12
)


def requests_of(prompts: list[list[int]], max_tokens: int = 4, n: int = 1) -> list[Request]:
    params = SamplingParams(max_tokens=max_tokens, n=n, temperature=1.0)  # none is a duplicate
    return [Request(index, tuple(prompt), params) for index, prompt in enumerate(prompts)]


def num_common(one: Seq[int], two: Seq[int]) -> int:
    pairs = zip(one, two, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


@given(prompts=PROMPTS, size=st.integers(1, 5))
def test_the_walk_agrees_with_one_over_plain_prefixes(prompts: list[list[int]], size: int) -> None:
    plan = Plan(requests_of(prompts), PlanRules(size))
    ordered = [list(sequence.request.prompt_token_ids) for sequence in plan]
    assert ordered == sorted(prompts)  # none is expected to get a longer answer than another
    indices = [sequence.request.index for sequence in plan]
    assert sorted(indices) == list(range(len(prompts)))

    seen: dict[tuple[int, ...], int] = {}
    done: list[list[int]] = []
    hit_tokens = common_tokens = 0
    for prompt in ordered:
        blocks = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        hits = sum(block in seen for block in blocks)
        hit_tokens += min(hits * size, len(prompt) - 1)  # the last token is always computed
        common = max((num_common(prompt, other) for other in done), default=0)
        common_tokens += min(common, len(prompt) - 1)
        done.append(prompt)
        for block in blocks:
            seen[block] = seen.get(block, 0) + 1
    assert plan.sharing.block_hit_tokens == hit_tokens
    assert plan.sharing.achievable_hit_tokens == common_tokens
    assert plan.sharing.num_shared_blocks == sum(count > 1 for count in seen.values())


@given(prompts=PROMPTS, size=st.integers(1, 5))
def test_rows_that_share_a_prefix_are_neighbours(prompts: list[list[int]], size: int) -> None:
    """No row is between two others that share more with each other than with it."""
    plan = Plan(requests_of(prompts), PlanRules(size))
    ordered = [sequence.request.prompt_token_ids for sequence in plan]
    for length in range(1, 21):
        heads = [prompt[:length] for prompt in ordered if len(prompt) >= length]
        changes = sum(a != b for a, b in pairwise(heads))
        assert changes == max(len(set(heads)) - 1, 0)


def test_equal_prompts_keep_the_order_of_the_input() -> None:
    requests = requests_of([[5], [3], [5], [3], [5]])
    plan = Plan(requests, PlanRules(4))
    assert [sequence.request.index for sequence in plan] == [1, 3, 0, 2, 4]


def test_token_ids_are_ordered_as_numbers() -> None:
    """As little-endian bytes 256 would come before 1."""
    plan = Plan(requests_of([[256], [1], [65_536], [2], [1, 0]]), PlanRules(4))
    prompts = [sequence.request.prompt_token_ids for sequence in plan]
    assert prompts == [(1,), (1, 0), (2,), (256,), (65_536,)]


def test_private_blocks_by_hand() -> None:
    """Block size 4. A: 10 + 5 - 1 = 14 tokens, 4 blocks. B shares A's first two."""
    shared = [1] * 8
    plan = Plan(requests_of([[*shared, 2, 2], [*shared, 3]], 5), PlanRules(4))
    assert plan.num_private_blocks.tolist() == [4, 2]  # B's 13 tokens: 4 blocks less 2 hits
    assert plan.sharing.num_shared_blocks == 2
    assert plan.sharing.achievable_hit_tokens == 8
    # Two at once: the shared two, all private ones, and one for each.
    assert plan.num_blocks_needed(2) == 2 + 6 + 2
    assert plan.num_blocks_needed(100) == plan.num_blocks_needed(2)
    assert plan.num_blocks_needed(1) == 2 + 4 + 1


def test_samples_share_full_prompt_blocks_only() -> None:
    """10 tokens: two full blocks once, and the half-filled third and the fourth for each sample."""
    plan = Plan(requests_of([[1] * 10], 5, n=3), PlanRules(4))
    assert plan.num_private_blocks.tolist() == [2 + 3 * 2]


def test_a_prompt_repeated_whole_computes_its_last_token() -> None:
    plan = Plan(requests_of([[7] * 8, [7] * 8], 1), PlanRules(4))
    assert plan.sharing.achievable_hit_tokens == 7
    assert plan.num_private_blocks.tolist() == [2, 0]


def test_without_prefix_caching_nothing_is_shared() -> None:
    plan = Plan(requests_of([[7] * 8, [7] * 8], 1), PlanRules(4, prefix_caching=False))
    assert (plan.sharing.achievable_hit_tokens, plan.sharing.num_shared_blocks) == (0, 0)
    assert plan.num_private_blocks.tolist() == [2, 2]
    assert all(sequence.block_keys == () for sequence in plan)


def test_nothing_to_plan() -> None:
    plan = Plan([], PlanRules(4))
    assert list(plan) == []
    assert plan.num_blocks_needed(8) == 0


def test_a_sequence_starts_with_all_samples_of_its_request() -> None:
    [planned] = Plan(requests_of([[1, 2]], n=3), PlanRules(4))
    sequence = Sequence.start(SequenceTable(), planned)
    assert sequence.pending_samples == (0, 1, 2)
    assert sequence.block_table == []


def test_what_is_planned_can_be_sent_to_another_process() -> None:
    plan = Plan(mixed(3), PlanRules(4))
    planned = list(plan)
    assert [each.place for each in planned] == list(range(len(plan)))
    assert pickle.loads(pickle.dumps(planned)) == planned


def mixed(seed: int) -> list[Request]:
    """Nested groups, single rows and repeated ones, with answers of different lengths."""
    pick = random.Random(seed)
    heads = [pick.choices(range(2), k=pick.randint(1, 12)) for _ in range(4)]
    return [
        Request(
            index,
            tuple(pick.choice(heads)[: pick.randint(1, 12)] + pick.choices(range(2), k=3)),
            SamplingParams(
                n=pick.choice([1, 1, 3]), max_tokens=pick.randint(1, 9), temperature=1.0
            ),
        )
        for index in range(pick.randint(1, 60))
    ]


@pytest.mark.parametrize("seed", range(60))
def test_each_sequence_knows_what_it_shares_and_what_is_needed_again(seed: int) -> None:
    size, rule = 1 + seed % 4, ReadOnce(4 << seed % 3, seed % 3 * 50)
    sequences = list(Plan(mixed(seed), PlanRules(size, read_once=rule)))
    prompts = [sequence.request.prompt_token_ids for sequence in sequences]
    for place, sequence in enumerate(sequences):
        prompt = prompts[place]
        others = prompts[:place] + prompts[place + 1 :]
        shared = max((num_common(prompt, other) for other in others), default=0)
        if sequence.request.params.n > 1:
            shared = len(prompt)
        assert sequence.num_shared_tokens == shared
        others.sort(key=lambda other: num_common(prompt, other), reverse=True)
        in_common = [len(prompt), *(num_common(prompt, other) for other in others)]
        crowds = [(rows, in_common[rows - 1]) for rows in rule.row_counts if rows <= len(in_common)]
        pays = [tokens for rows, tokens in crowds if rows * tokens >= rule.min_work]
        assert sequence.num_read_once_tokens == max(pays, default=0)
        later = max((num_common(prompt, other) for other in prompts[place + 1 :]), default=0)
        assert sequence.num_keep_blocks == later // size
        assert list(sequence.block_keys) == BlockKey.chain(prompt, size)[: shared // size]


@pytest.mark.parametrize("seed", range(60))
def test_the_longest_answers_come_first_and_groups_stay_together(seed: int) -> None:
    requests = [r.params.max_tokens for r in Plan(mixed(seed), PlanRules(4))._requests]
    plan = Plan(mixed(seed), PlanRules(4))
    ordered = [sequence.request for sequence in plan]
    assert ordered[0].params.max_tokens == max(requests)
    for length in range(1, 16):
        heads = [r.prompt_token_ids[:length] for r in ordered if len(r.prompt_token_ids) >= length]
        assert sum(a != b for a, b in pairwise(heads)) == max(len(set(heads)) - 1, 0)


def test_three_nested_levels_are_each_computed_once() -> None:
    """Company, task, examples, row: whole blocks of 4, and what is computed is the tree."""
    pick = random.Random(3)

    def tokens(count: int) -> list[int]:
        return [pick.randrange(1000) for _ in range(count)]

    company = tokens(32)
    prompts = []
    for _ in range(3):
        task = company + tokens(16)
        for _ in range(2):
            shots = task + tokens(20)
            prompts += [shots + tokens(pick.randint(3, 9)) for _ in range(5)]
    plan = Plan(requests_of(prompts), PlanRules(4))
    tree = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert plan.tree.num_distinct_tokens == len(tree)
    assert sum(map(len, prompts)) - plan.sharing.block_hit_tokens == len(tree)
    assert (plan.tree.depth, plan.tree.num_groups) == (3, 1)
    best = plan.tree.top_prefixes(3)
    assert best[0].num_tokens == 32
    assert (best[0].num_rows, best[0].num_tokens_saved) == (30, 29 * 32)
    assert tuple(prompts[best[0].row][:32]) == tuple(company)
    assert [each.num_tokens_saved for each in best[1:]] == [9 * 16, 9 * 16]


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_do_not_fit_leave_the_others_as_they_are(seed: int) -> None:
    requests = mixed(seed)
    everything = {s.request.index: s for s in Plan(requests, PlanRules(2))}
    plan = Plan(requests, PlanRules(2, max_blocks=8))
    ran = list(plan)
    assert sorted([s.request.index for s in ran] + [r.index for r in plan.too_large]) == sorted(
        everything
    )
    assert all(-(-s.request.max_num_tokens // 2) <= 8 for s in ran)
    assert all(-(-r.max_num_tokens // 2) > 8 for r in plan.too_large)
    prompts = [s.request.prompt_token_ids for s in ran]
    for place, sequence in enumerate(ran):
        # The path that attention takes must not depend on the size of the pool.
        before = everything[sequence.request.index]
        assert sequence.num_shared_tokens == before.num_shared_tokens
        assert sequence.num_read_once_tokens == before.num_read_once_tokens
        later = max((num_common(prompts[place], p) for p in prompts[place + 1 :]), default=0)
        assert sequence.num_keep_blocks == later // 2


@pytest.mark.parametrize("seed", range(40))
def test_a_window_goes_on_where_the_last_one_ended(seed: int) -> None:
    requests = mixed(seed)
    half = len(requests) // 2
    first = Plan(requests[:half], PlanRules(2), has_next=True)
    second = Plan(requests[half:], PlanRules(2), after=first.end)
    if not len(first):
        return
    *_, last = list(first)
    prompt = last.request.prompt_token_ids
    assert last.num_keep_blocks == len(prompt) // 2 <= len(last.block_keys)
    begun = [sequence.request.prompt_token_ids for sequence in second]
    in_common = [num_common(prompt, other) for other in begun]
    # The rows that have most in common with the last one come first.
    assert in_common == sorted(in_common, reverse=True)
    assert second.tree.common[0] == in_common[0]
    alone = Plan(requests[half:], PlanRules(2))
    shared = {s.request.index: s.num_shared_tokens for s in alone}
    assert {s.request.index: s.num_shared_tokens for s in second} == shared
    assert (
        next(iter(second)).block_keys[: in_common[0] // 2] == last.block_keys[: in_common[0] // 2]
    )
