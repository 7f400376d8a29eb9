"""Attention gives a row the same bytes whatever is computed with it, on data that show each change.

See `order_sensitive`: a result is nothing but the rounding noise of one order of summation, in the
products of queries and keys or in those of weights and values.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import PrefixState, Softmax
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.reference import attention as reference
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from tests.kernels.cpu.attention_forms import (
    FORMS,
    KINDS,
    Form,
    Way,
    assert_same_state,
    prefill,
    prefix,
)
from tests.kernels.cpu.order_sensitive import Cache, Kind, Tokens
from tests.support.attention_cases import Chunk, in_float64, prefill_inputs
from tests.support.every_pair import every_pair
from tests.support.kernel_cases import skip_unless_supported, threads

P = PARTITION_TOKENS
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
# float32 is multiplied alike in all sets, which has a test of its own.
WAYS = [*((each, BFLOAT16) for each in KernelSet), (KernelSet.PORTABLE, FLOAT32)]
HEAD_DIMS = [16, 32, 64, 80, 96, 128, 256]
GROUPS = [1, 2, 5, 7, 8]
BLOCK_SIZES = [16, 1, 5, 32, 64]


def cuts_of(first: int, last: int, seed: int) -> list[Chunk]:
    """Cut first .. last - 1 into chunks at random places, some of them next to each other."""
    rng = np.random.default_rng(seed)
    inner = rng.choice(np.arange(first + 1, last), size=min(6, last - first - 1), replace=False)
    places = sorted({first, last, *inner.tolist(), *(place + 1 for place in inner[:2].tolist())})
    return [(0, start, end - start) for start, end in pairwise(places) if end <= last]


@every_pair(
    head_dim=HEAD_DIMS, group=GROUPS, way=WAYS, kind=KINDS, form=FORMS, block_size=[16, 1, 5, 64]
)
def test_chunks_cut_anywhere_give_the_bytes_of_one(
    head_dim: int,
    group: int,
    way: Way,
    kind: Kind,
    form: Form,
    block_size: int,
) -> None:
    skip_unless_supported(way[0])
    first, last = 2 * P + 40, 3 * P + 9
    tokens = Tokens.make(
        kind, last, num_kv_heads=2, group=group, head_dim=head_dim, dtype=way[1], num_paired=first
    )
    cache = Cache.of(tokens, [list(range(last))], block_size)
    whole = prefill(way, tokens, cache, [(0, first, last - first)], form)
    assert whole.isfinite().all()
    for num_rows in (1, 2, 5, 16, 17, 33):
        head, tail = [(0, first, num_rows)], [(0, last - num_rows, num_rows)]
        assert torch.equal(prefill(way, tokens, cache, head, form), whole[:num_rows]), num_rows
        assert torch.equal(prefill(way, tokens, cache, tail, form), whole[-num_rows:]), num_rows
    chunks = cuts_of(first, last, seed=group)
    alone = torch.cat([prefill(way, tokens, cache, [chunk], form) for chunk in chunks])
    assert torch.equal(alone, whole)
    assert torch.equal(prefill(way, tokens, cache, chunks, form), whole)  # in one call
    with threads(1):
        assert torch.equal(prefill(way, tokens, cache, chunks, form), whole)


@every_pair(head_dim=[16, 64, 80, 128], way=WAYS, kind=KINDS, form=FORMS)
def test_block_sizes_give_the_same_bytes(head_dim: int, way: Way, kind: Kind, form: Form) -> None:
    skip_unless_supported(way[0])
    last = 2 * P + 70
    tokens = Tokens.make(
        kind, last, num_kv_heads=2, group=2, head_dim=head_dim, dtype=way[1], num_paired=2 * P
    )
    expected, *others = (
        prefill(way, tokens, Cache.of(tokens, [list(range(last))], size), [(0, 0, last)], form)
        for size in BLOCK_SIZES
    )
    for block_size, other in zip(BLOCK_SIZES[1:], others, strict=True):
        assert torch.equal(other, expected), block_size


@every_pair(
    in_turn="head_dim",
    head_dim=HEAD_DIMS,
    group=GROUPS,
    way=WAYS,
    kind=KINDS,
    form=FORMS,
    block_size=[16, 5],
)
def test_chunks_behind_nested_prefixes_give_the_bytes_of_each_alone(
    head_dim: int,
    group: int,
    way: Way,
    kind: Kind,
    form: Form,
    block_size: int,
) -> None:
    skip_unless_supported(way[0])
    num_tokens = 1200
    tokens = Tokens.make(
        kind, num_tokens, num_kv_heads=2, group=group, head_dim=head_dim, dtype=way[1]
    )
    common, task, fresh = list(range(300)), list(range(300, 520)), iter(range(520, num_tokens))

    def own(count: int) -> list[int]:
        return [next(fresh) for _ in range(count)]

    sequences = [
        common + task + own(40),
        common + task + own(3),
        common + task + own(90),
        common + own(70),
        common + own(1),
        common[:140] + own(20),
        own(150),
    ]
    cache = Cache.of(tokens, sequences, block_size)
    # What comes before a chunk is what its sequence has in common with others, or a part of it.
    firsts = [520, 520, 500, 300, 300, 140, 0]
    chunks = [
        (row, first, len(sequence) - first)
        for row, (sequence, first) in enumerate(zip(sequences, firsts, strict=True))
    ]
    together = prefill(way, tokens, cache, chunks, form, sequences)
    alone = [prefill(way, tokens, cache, [chunk], form, sequences) for chunk in chunks]
    assert torch.equal(together, torch.cat(alone))
    order = [3, 6, 1, 5, 0, 4, 2]  # those that share are no neighbours
    shuffled = prefill(way, tokens, cache, [chunks[i] for i in order], form, sequences)
    assert torch.equal(shuffled, torch.cat([alone[i] for i in order]))
    with threads(1):
        assert torch.equal(prefill(way, tokens, cache, chunks, form, sequences), together)


@every_pair(
    in_turn="head_dim",
    head_dim=HEAD_DIMS,
    group=GROUPS,
    way=WAYS,
    kind=KINDS,
    softcap=[None, 2.0],
    block_size=[16, 1, 64],
)
def test_shared_prefixes_give_the_bytes_of_each_row_alone(
    head_dim: int, group: int, way: Way, kind: Kind, softcap: float | None, block_size: int
) -> None:
    skip_unless_supported(way[0])
    num_tokens = 5 * P
    tokens = Tokens.make(
        kind, num_tokens, num_kv_heads=2, group=group, head_dim=head_dim, dtype=way[1]
    )
    every = list(range(num_tokens))
    # Twenty rows share four partitions, the next thirteen two of these, and others none.
    sequences = [
        *([*every[: 4 * P], every[4 * P + i]] for i in range(20)),
        *([*every[: 2 * P], *every[4 * P + i :]] for i in range(13)),
        every[7 : 7 + 3 * P],
        every[P:],
    ]
    num_partitions = [*[4] * 20, *[2] * 13, 3, 1]
    cache = Cache.of(tokens, sequences, block_size)
    q = tokens.q[: len(sequences)]

    def attend(share: bool = True) -> PrefixState:
        return prefix(way, tokens, cache, q, num_partitions, block_size, softcap, share)

    together = attend()
    assert_same_state(attend(share=False), together, "alone")
    with threads(1):
        assert_same_state(attend(), together, "one thread")
    other = Cache.of(tokens, sequences, 128, seed=1)
    assert_same_state(prefix(way, tokens, other, q, num_partitions, 128, softcap), together, 128)


@every_pair(way=WAYS, kind=KINDS, group=[1, 5, 8])
def test_a_crowd_behind_one_prefix_gives_the_bytes_of_each_row_alone(
    way: Way, kind: Kind, group: int
) -> None:
    """Numbers of rows cross every height of blocks, halves of blocks, and tiles."""
    skip_unless_supported(way[0])
    most = 600
    tokens = Tokens.make(kind, most, num_kv_heads=1, group=group, head_dim=64, dtype=way[1])
    cache = Cache.of(tokens, [list(range(3 * P))], 16)

    def state(num_rows: int, first: int = 0) -> PrefixState:
        table = cache.block_tables.expand(num_rows, -1).contiguous()
        crowd = Cache(cache.key_cache, cache.value_cache, table)
        q = tokens.q[first : first + num_rows]
        return prefix(way, tokens, crowd, q, [3] * num_rows, 16)

    everyone = state(most)
    for num_rows in (1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 64, 100, 257, 513):
        for first in (0, most - num_rows):
            rows = slice(first, first + num_rows)
            expected = PrefixState(
                everyone.max_scores[rows],
                everyone.sum_exps[rows],
                everyone.accs[rows],
                everyone.num_partitions[rows],
            )
            assert_same_state(state(num_rows, first), expected, (num_rows, first))


@every_pair(head_dim=HEAD_DIMS, group=GROUPS, way=WAYS, form=FORMS)
def test_prefill_is_near_the_reference(
    head_dim: int,
    group: int,
    way: Way,
    form: Form,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    skip_unless_supported(way[0])
    first, last = P + 30, 2 * P + 50
    tokens = Tokens.make(
        Kind.RANDOM, last, num_kv_heads=2, group=group, head_dim=head_dim, dtype=way[1]
    )
    cache = Cache.of(tokens, [list(range(last))], 16)
    expected = reference.prefill_attention(
        tokens.q[first:].double(),
        in_float64(cache.layer),
        cache.block_tables,
        prefill_inputs([(0, first, last - first)]),
        form.softmax(tokens),
        form.window,
    )
    assert_close(prefill(way, tokens, cache, [(0, first, last - first)], form), expected)


@every_pair(head_dim=HEAD_DIMS, group=GROUPS, way=WAYS, softcap=[None, 2.0])
def test_prefix_is_near_the_reference(
    head_dim: int,
    group: int,
    way: Way,
    softcap: float | None,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    """Compared are the weighted means, and the logarithms of the sums of weights."""
    skip_unless_supported(way[0])
    tokens = Tokens.make(
        Kind.RANDOM, 3 * P, num_kv_heads=2, group=group, head_dim=head_dim, dtype=way[1]
    )
    every = list(range(3 * P))
    cache = Cache.of(tokens, [every, every, [*every[: 2 * P], 5], every[3:]], 16)
    num_partitions = [3, 3, 2, 1]
    state = prefix(way, tokens, cache, tokens.q[:4], num_partitions, 16, softcap)
    groups = PrefixSharing(share=True).groups(
        cache.block_tables.numpy(),
        np.arange(4, dtype=np.int32),
        np.array(num_partitions, np.int32),
        16,
    )
    assert groups is not None
    expected = reference.prefix_attention(
        tokens.q[:4].double(),
        in_float64(cache.layer),
        cache.block_tables,
        groups,
        Softmax(tokens.scale, softcap),
    )
    mean = (state.accs / state.sum_exps[..., None]).to(way[1])
    assert_close(mean, expected.accs / expected.sum_exps[..., None])
    assert_close(
        state.max_scores + state.sum_exps.log2(), expected.max_scores + expected.sum_exps.log2()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_float32_has_the_same_bytes_in_every_set(kind: Kind) -> None:
    tokens = Tokens.make(kind, 300, num_kv_heads=2, group=2, head_dim=64, dtype=FLOAT32)
    cache = Cache.of(tokens, [list(range(300))], 16)
    every = [
        prefill((each, FLOAT32), tokens, cache, [(0, 0, 300)]) for each in KernelSet.supported()
    ]
    assert all(torch.equal(each, every[0]) for each in every)


@pytest.mark.parametrize("way", WAYS)
def test_data_show_what_they_are_meant_to_show(way: Way) -> None:
    """Another order of the dimensions, or of the tokens, changes what comes out."""
    skip_unless_supported(way[0])
    sizes: Any = {"num_kv_heads": 1, "group": 2, "head_dim": 64, "dtype": way[1]}
    scores = Tokens.make(Kind.SCORES, 200, **sizes)
    flipped = Tokens(scores.q.flip(-1), scores.keys.flip(-1), scores.values, scores.scale)
    values = Tokens.make(Kind.VALUES, 200, num_paired=190, **sizes)
    order = [*reversed(range(100)), *range(100, 200)]
    reordered = Tokens(values.q, values.keys[order], values.values[order], values.scale)
    for one, other, rows in ((scores, flipped, 200), (values, reordered, 10)):
        results = [
            prefill(way, each, Cache.of(each, [list(range(200))], 16), [(0, 200 - rows, rows)])
            for each in (one, other)
        ]
        assert (results[0] != results[1]).any(dim=-1).float().mean() > 0.9
