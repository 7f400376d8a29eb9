"""Terms of scores by the distance of query and key, in texts that are seen to both sides."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, RelativeTerms, Softmax
from pagedrun.kernels.reference import attention as reference
from tests.kernels.conftest import Twin
from tests.support.attention_cases import Chunk, in_float64, on_device, prefill_inputs
from tests.support.every_pair import every_pair

SIZES = [1, 15, 17, 70]
CHUNKS = [(table, 0, size) for table, size in enumerate(SIZES)]
STARTS = [0, *accumulate(SIZES)]
NUM_COLUMNS = 24
HEADS = [(2, 1), (1, 3)]  # kv heads, and query heads of each
DTYPES = [torch.float32, torch.bfloat16]
KINDS = ["table", "by_query", "by_key", "both"]


def terms_of(kind: str, num_tokens: int, num_heads: int, dtype: torch.dtype) -> RelativeTerms:
    """Return large random terms; a table of all tokens is expanded, others lie head by head."""
    distances = torch.arange(-150, 151)
    columns = (distances.clamp(-11, 11) + 12).to(torch.int32)
    torch.manual_seed(7)
    shape = (num_heads, num_tokens, NUM_COLUMNS)
    by_query, by_key = (torch.randn(2, *shape) * 6).to(dtype).transpose(1, 2)
    if kind == "table":
        return RelativeTerms(columns, by_query[:1].expand(num_tokens, -1, -1))
    return RelativeTerms(
        columns, None if kind == "by_key" else by_query, None if kind == "by_query" else by_key
    )


def mapped(terms: RelativeTerms, change: Callable[[Tensor], Tensor]) -> RelativeTerms:
    tables = [None if each is None else change(each) for each in (terms.by_query, terms.by_key)]
    return RelativeTerms(terms.columns, *tables)


def attend(
    q: Tensor, context: Any, chunks: list[Chunk], terms: RelativeTerms, twin: Twin | None
) -> Tensor:
    """Attend by a backend, or by the reference in float64; the result is on the CPU."""
    layer = KVLayer(context.key_cache, context.value_cache)
    inputs = replace(prefill_inputs(chunks), is_causal=False)
    scale = q.shape[2] ** -0.5
    if twin is None:
        softmax = Softmax(scale, relative=mapped(terms, Tensor.double))
        return reference.prefill_attention(
            q.double(), in_float64(layer), context.block_tables, inputs, softmax, None
        )
    device = twin.device
    there = replace(mapped(terms, lambda each: each.to(device)), columns=terms.columns.to(device))
    ops: Any = twin.ops
    out: Tensor = ops.prefill_attention(
        q.to(device),
        on_device(layer, device),
        context.block_tables.to(device),
        inputs.placed(lambda each: each.to(device)),
        Softmax(scale, relative=there),
        None,
    )
    return out.cpu()


def queries(num_tokens: int, num_heads: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(num_tokens, num_heads, 32).to(dtype)


@every_pair(in_turn="kind", heads=HEADS, kind=KINDS, dtype=DTYPES)
def test_matches_reference(
    heads: tuple[int, int],
    kind: str,
    dtype: torch.dtype,
    twin: Twin,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    num_kv_heads, group = heads
    context = make_context(
        SIZES, num_kv_heads=num_kv_heads, head_dim=32, block_size=16, dtype=dtype
    )
    q = queries(sum(SIZES), num_kv_heads * group, dtype)
    terms = terms_of(kind, sum(SIZES), num_kv_heads * group, dtype)
    out = attend(q, context, CHUNKS, terms, twin)
    expected = attend(q, context, CHUNKS, terms, None)
    assert_close(out, expected)


def test_the_reference_adds_terms_to_products(make_context: Callable[..., Any]) -> None:
    context = make_context([7], num_kv_heads=1, head_dim=32, block_size=16, dtype=torch.float32)
    q, terms = queries(7, 1, torch.float32), terms_of("both", 7, 1, torch.float32)
    out = attend(q, context, [(0, 0, 7)], terms, None)
    layer = KVLayer(context.key_cache, context.value_cache)
    keys, values = reference.gather_context(layer, context.block_tables[0], 7)
    products = q[:, 0].double() @ keys[0].double().T
    assert terms.by_query is not None
    assert terms.by_key is not None
    for query in range(7):
        for key in range(7):
            column = min(max(query - key, -11), 11) + 12
            products[query, key] += terms.by_query[query, 0, column].double()
            products[query, key] += terms.by_key[key, 0, column].double()
    weights = torch.softmax(products / 32**0.5, dim=-1)
    torch.testing.assert_close(out[:, 0], weights @ values[0].double())


@every_pair(in_turn="dtype", kind=["table", "both"], dtype=DTYPES)
def test_a_text_alone_has_the_bytes_of_a_text_among_others(
    kind: str, dtype: torch.dtype, twin: Twin, make_context: Callable[..., Any]
) -> None:
    context = make_context(SIZES, num_kv_heads=2, head_dim=32, block_size=16, dtype=dtype)
    q, terms = queries(sum(SIZES), 2, dtype), terms_of(kind, sum(SIZES), 2, dtype)
    together = attend(q, context, CHUNKS, terms, twin)
    for chunk, start, size in zip(CHUNKS, STARTS, SIZES, strict=False):
        own = slice(start, start + size)
        alone = mapped(terms, lambda each, own=own: each[own])  # type: ignore[misc]
        assert torch.equal(attend(q[own], context, [chunk], alone, twin), together[own]), size


def test_terms_that_cancel_are_added_in_one_order(
    twin: Twin, make_context: Callable[..., Any]
) -> None:
    """Products, terms of queries and terms of keys that nearly cancel: another order of addition
    would show in all digits of a score."""
    context = make_context(
        [137, 5], num_kv_heads=1, head_dim=32, block_size=16, dtype=torch.float32
    )
    q, terms = queries(142, 1, torch.float32), terms_of("both", 142, 1, torch.float32)
    large = mapped(terms, lambda each: each.sign() * 2.0**20 + each)
    assert large.by_query is not None
    opposite = replace(large, by_key=(-large.by_query.flip(0)).contiguous())
    chunks = [(0, 0, 137), (1, 0, 5)]
    together = attend(q, context, chunks, opposite, twin)
    alone = mapped(opposite, lambda each: each[137:])
    assert torch.equal(attend(q[137:], context, chunks[1:], alone, twin), together[137:])
    first = mapped(opposite, lambda each: each[:137])
    assert torch.equal(attend(q[:137], context, chunks[:1], first, twin), together[:137])
