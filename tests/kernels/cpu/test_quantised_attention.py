"""Attention over keys and values in int8 and float8: right, a row's bytes its own, NaN kept apart.

The data are those of `order_sensitive`, quantised. Each kernel set takes one kind of codes in the
default run and the other in the long one: each pair of queries and codes is compiled for itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import (
    DecodeInputs,
    KVLayer,
    KVScales,
    Softmax,
)
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.reference import attention as reference
from tests.kernels.cpu.attention_forms import FORMS, KINDS, Form, assert_same_state, prefill, prefix
from tests.kernels.cpu.order_sensitive import Cache, Kind, Tokens
from tests.support.attention_cases import as_int32, in_float64, prefill_inputs
from tests.support.kernel_cases import skip_unless_supported, threads

P = PARTITION_TOKENS
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
INT8, FLOAT8 = torch.int8, torch.float8_e4m3fn


class Way(NamedTuple):
    """How products are computed, of queries in which dtype with codes of which."""

    kernel_set: KernelSet
    dtype: torch.dtype
    codes: torch.dtype

    def tokens(self, kind: Kind, num_tokens: int, group: int = 2, head_dim: int = 64) -> Tokens:
        """Return tokens of two kv heads, where this way can be tried."""
        skip_unless_supported(self.kernel_set)
        sizes: Any = {"num_kv_heads": 2, "group": group, "head_dim": head_dim}
        return Tokens.make(kind, num_tokens, dtype=self.dtype, **sizes)


DEFAULT = [
    Way(KernelSet.AMX, BFLOAT16, INT8),
    Way(KernelSet.AVX512_BF16, BFLOAT16, FLOAT8),
    Way(KernelSet.PORTABLE, FLOAT32, FLOAT8),
]
THOROUGH = [
    Way(KernelSet.AMX, BFLOAT16, FLOAT8),
    Way(KernelSet.AVX512_BF16, BFLOAT16, INT8),
    Way(KernelSet.PORTABLE, BFLOAT16, INT8),
    Way(KernelSet.PORTABLE, FLOAT32, INT8),
]
every_way = pytest.mark.parametrize(
    "way",
    [*DEFAULT, *(pytest.param(each, marks=pytest.mark.long) for each in THOROUGH)],
    ids=lambda way: f"{way.kernel_set}-{way.dtype}-{way.codes}".replace("torch.", ""),
)


@every_way
@pytest.mark.parametrize(
    ("head_dim", "group", "form", "block_size"),
    [
        (128, 2, FORMS[0], 16),
        (64, 5, FORMS[1], 5),
        (80, 1, FORMS[2], 64),
        (96, 8, FORMS[3], 16),
        (512, 2, FORMS[0], 32),
    ],
)
def test_near_the_reference_over_what_the_codes_mean(
    way: Way,
    head_dim: int,
    group: int,
    form: Form,
    block_size: int,
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    first, last = P + 30, 2 * P + 50
    tokens = way.tokens(Kind.RANDOM, last, group, head_dim)
    cache = Cache.of(tokens, [list(range(last))], block_size).quantised(way.codes)
    wide, q = in_float64(cache.layer), tokens.q[first:].double()
    inputs = prefill_inputs([(0, first, last - first)])
    rest: tuple[Any, ...] = (form.softmax(tokens), form.window)
    expected = reference.prefill_attention(q, wide, cache.block_tables, inputs, *rest)
    assert_close(prefill(way[:2], tokens, cache, [(0, first, last - first)], form), expected)
    rows = DecodeInputs(as_int32([0, 0]), as_int32([last, first]))
    out = CpuBackend.decode_attention(tokens.q[:2], cache.layer, cache.block_tables, rows, *rest)
    alone = reference.decode_attention(tokens.q[:2].double(), wide, cache.block_tables, rows, *rest)
    assert_close(out, alone)


@every_way
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_blocks_of_any_size_give_the_bytes_of_one(way: Way, kind: Kind) -> None:
    last = 2 * P + 70
    tokens = way.tokens(kind, last)
    results = []
    for block_size in (16, 5, 64):
        cache = Cache.of(tokens, [list(range(last))], block_size).quantised(way.codes)
        results.append(prefill(way[:2], tokens, cache, [(0, 0, last)]))
        cuts = [(0, 0, 1), (0, 1, P), (0, P + 1, 40), (0, P + 41, last - P - 41)]
        alone = [prefill(way[:2], tokens, cache, [cut]) for cut in cuts]
        results += [torch.cat(alone), prefill(way[:2], tokens, cache, cuts)]
    assert results[0].isfinite().all()
    assert all(torch.equal(each, results[0]) for each in results)


@every_way
@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefixes_give_the_bytes_of_each_row_alone(way: Way, kind: Kind) -> None:
    tokens = way.tokens(kind, 5 * P)
    every = list(range(5 * P))
    sequences = [
        *([*every[: 4 * P], every[4 * P + i]] for i in range(20)),
        *([*every[: 2 * P], *every[4 * P + i :]] for i in range(13)),
        every[7 : 7 + 3 * P],
    ]
    shared = [*[4] * 20, *[2] * 13, 3]
    cache = Cache.of(tokens, sequences, 16).quantised(way.codes)
    other = Cache.of(tokens, sequences, 128, seed=1).quantised(way.codes)
    q = tokens.q[: len(sequences)]
    together = prefix(way[:2], tokens, cache, q, shared, 16)
    alone = prefix(way[:2], tokens, cache, q, shared, 16, share=False)
    assert_same_state(alone, together, "alone")
    with threads(1):
        assert_same_state(prefix(way[:2], tokens, cache, q, shared, 16), together, "one thread")
    assert_same_state(prefix(way[:2], tokens, other, q, shared, 128), together, "larger blocks")


@every_way
@pytest.mark.parametrize("spoilt", ["keys", "values"])
@pytest.mark.parametrize("what", ["scale", "code"])
def test_what_is_not_finite_reaches_those_who_see_it_and_no_others(
    way: Way, spoilt: str, what: str
) -> None:
    """0 x NaN is NaN: a masked token would spoil those before it, and the blocks they share."""
    if what == "code" and way.codes is INT8:
        pytest.skip("every code of int8 is a number")
    num_tokens, position = P + 40, P + 21
    tokens = way.tokens(Kind.RANDOM, num_tokens)
    cache = Cache.of(tokens, [list(range(num_tokens))], 16).quantised(way.codes)
    assert cache.scales is not None
    block, offset = int(cache.block_tables[0, position // 16]), position % 16
    expected = prefill(way[:2], tokens, cache, [(0, 0, num_tokens)])
    if what == "scale":
        getattr(cache.scales, spoilt)[block, 1, offset] = torch.nan
    else:
        getattr(cache.layer, spoilt)[block, 1, offset, 3] = torch.nan
    out = prefill(way[:2], tokens, cache, [(0, 0, num_tokens)])
    assert torch.equal(out[:position], expected[:position])
    assert torch.equal(out[:, :2], expected[:, :2])  # of the other kv head
    assert out[position:, 2:].isnan().all()


@pytest.mark.parametrize(("dtype", "codes"), [(BFLOAT16, INT8), (FLOAT32, FLOAT8)])
def test_a_decoded_row_has_its_bytes_in_any_batch_and_blocks_of_any_size(
    dtype: torch.dtype, codes: torch.dtype
) -> None:
    tokens = Tokens.make(Kind.SCORES, 500, num_kv_heads=2, group=2, head_dim=80, dtype=dtype)
    sequences = [list(range(length)) for length in (5, 127, 128, 300, 411)]
    lens = as_int32([*map(len, sequences)])
    q, softmax = tokens.q[:5], Softmax(tokens.scale)
    results = []
    for block_size in (16, 5, 64):
        cache = Cache.of(tokens, sequences, block_size).quantised(codes)
        rows = DecodeInputs(as_int32(range(5)), lens)
        tables = cache.block_tables
        results.append(CpuBackend.decode_attention(q, cache.layer, tables, rows, softmax, None))
        alone = [
            CpuBackend.decode_attention(
                q[row : row + 1],
                cache.layer,
                tables[row : row + 1],
                DecodeInputs(as_int32([0]), lens[row : row + 1]),
                softmax,
                None,
            )
            for row in range(5)
        ]
        results.append(torch.cat(alone))
    assert results[0].isfinite().all()
    assert all(torch.equal(each, results[0]) for each in results)


def test_the_largest_sums_of_integers_fit() -> None:
    """512 products of the largest numbers, of one sign and of the other."""
    keys = torch.full((1, 1, 2, 512), 127, dtype=INT8)
    keys[0, 0, 1] = -127
    values = torch.zeros_like(keys)
    values[0, 0, 0] = 127
    scales = KVScales(*(torch.full((1, 1, 2), 1 / 127) for _ in range(2)))
    layer, rows = KVLayer(keys, values, scales), DecodeInputs(as_int32([0]), as_int32([2]))
    q = torch.ones(1, 2, 512, dtype=BFLOAT16)
    out = CpuBackend.decode_attention(q, layer, as_int32([[0]]), rows, Softmax(1 / 512), None)
    expected = torch.tensor([1.0, -1.0]).softmax(0)[0]
    assert (out.float() - expected).abs().max() < 4e-3
