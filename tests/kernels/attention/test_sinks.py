"""Sinks: one more score for each head, which takes weight and has no value."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    DecodeInputs,
    KVLayer,
    Softmax,
)
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.reference import attention as reference
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from tests.kernels.conftest import Twin
from tests.support.attention_cases import as_int32, in_float64, on_device, prefill_inputs
from tests.support.every_pair import every_pair, long_except

P = PARTITION_TOKENS
DTYPES = [torch.float32, torch.bfloat16]
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 16, 16
SCALE = 0.3
LENGTHS = [1, P - 1, P, P + 17]
CHUNK = 20  # of each row's last tokens, or fewer
SINKS = torch.tensor([0.7, -1.5, 2.0, 0.0, -0.3, 5.0])


def prepared(ops: Backend, device: torch.device, tables: Tensor, dtype: torch.dtype) -> Attention:
    """Return attention from the last tokens of each row as a prompt's, and from its last alone."""
    rows = as_int32(range(len(LENGTHS)))
    sizes = [min(CHUNK, length) for length in LENGTHS]
    firsts = [length - size for length, size in zip(LENGTHS, sizes, strict=True)]
    prefill = prefill_inputs([*zip(range(len(LENGTHS)), firsts, sizes, strict=True)])
    decode = DecodeInputs(rows, as_int32(LENGTHS))
    inputs = AttentionInputs(tables, sum(sizes), prefill, decode)
    shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, dtype, dtype)
    return ops.prepare(inputs.placed(lambda tensor: tensor.to(device)), shape)


def both_paths(
    twin: Twin, context: Any, q: Tensor, window: int | None, sinks: Tensor | None
) -> list[Tensor]:
    """Return attention from prompt tokens and from generated ones."""
    layer = on_device(KVLayer(context.key_cache, context.value_cache), twin.device)
    softmax = Softmax(SCALE, sinks=None if sinks is None else sinks.to(twin.device))
    attention = prepared(twin.ops, twin.device, context.block_tables, layer.keys.dtype)
    q = q.to(twin.device)
    prompts = attention.prefill(q, layer, softmax, window)
    return [prompts.cpu(), attention.decode(q[: len(LENGTHS)], layer, softmax, window).cpu()]


def inputs(make_context: Callable[..., Any], dtype: torch.dtype) -> tuple[Any, Tensor]:
    context = make_context(
        LENGTHS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK_SIZE, dtype=dtype
    )
    torch.manual_seed(0)
    num_tokens = sum(min(CHUNK, length) for length in LENGTHS)
    return context, torch.randn(num_tokens, HEADS, HEAD_DIM).to(dtype)


@every_pair(in_turn="window", window=[None, 1, 50], dtype=DTYPES)
def test_matches_reference(
    window: int | None,
    dtype: torch.dtype,
    twin: Twin,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    context, q = inputs(make_context, dtype)
    found = both_paths(twin, context, q, window, SINKS)
    plain = both_paths(twin, context, q, window, None)
    wide = type(context)(
        context.key_cache.double(), context.value_cache.double(), context.block_tables
    )
    exact = Twin(Backend(), torch.device("cpu"))
    expected = both_paths(exact, wide, q.double(), window, SINKS.double())
    for got, want, without in zip(found, expected, plain, strict=True):
        assert_close(got, want)
        assert (got - without).abs().max() > 0.05


def test_the_reference_is_a_softmax_with_one_more_column(make_context: Callable[..., Any]) -> None:
    """Without the code under test: the last query of the longest row, over all it sees."""
    context, q = inputs(make_context, torch.float32)
    length, group = LENGTHS[-1], HEADS // KV_HEADS
    table = context.block_tables[-1].long()
    query = q[-1]
    for head in range(HEADS):
        keys, values = (
            cache[table, head // group].reshape(-1, HEAD_DIM)[:length].double()
            for cache in (context.key_cache, context.value_cache)
        )
        scores = torch.cat([keys @ query[head].double() * SCALE, SINKS[head, None].double()])
        expected = scores.softmax(0)[:-1] @ values
        rows = DecodeInputs(as_int32([len(LENGTHS) - 1]), as_int32([length]))
        layer = KVLayer(context.key_cache, context.value_cache)
        softmax = Softmax(SCALE, sinks=SINKS)
        found = reference.decode_attention(
            query[None], layer, context.block_tables, rows, softmax, None
        )
        torch.testing.assert_close(found[0, head].double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", long_except(DTYPES, [torch.bfloat16]))
def test_a_sink_that_weighs_nothing_changes_no_bit(
    dtype: torch.dtype, twin: Twin, make_context: Callable[..., Any]
) -> None:
    context, q = inputs(make_context, dtype)
    nothing = both_paths(twin, context, q, None, torch.full((HEADS,), -torch.inf))
    for got, expected in zip(nothing, both_paths(twin, context, q, None, None), strict=True):
        assert torch.equal(got, expected)


def test_a_sink_far_above_all_scores_leaves_zero(
    twin: Twin, make_context: Callable[..., Any]
) -> None:
    context, q = inputs(make_context, torch.float32)
    for out in both_paths(twin, context, q, None, torch.full((HEADS,), 1e4)):
        assert out.abs().max() < 1e-30  # neither NaN nor infinite


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_shared_prefix_adds_no_sink_of_its_own(
    dtype: torch.dtype,
    twin: Twin,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    lengths = as_int32([2 * P + 5, 2 * P + 40, 3 * P])
    context = make_context(
        lengths.tolist(),
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=BLOCK_SIZE,
        dtype=dtype,
    )
    context.block_tables[1:, : 2 * P // BLOCK_SIZE] = context.block_tables[0, : 2 * P // BLOCK_SIZE]
    tables, rows = context.block_tables, as_int32([0, 1, 2])
    groups = PrefixSharing(share=True).groups(
        tables.numpy(), rows.numpy(), np.full(3, 2, np.int32), BLOCK_SIZE
    )
    torch.manual_seed(0)
    q = torch.randn(3, HEADS, HEAD_DIM).to(dtype)
    layer = on_device(KVLayer(context.key_cache, context.value_cache), twin.device)
    step = AttentionInputs(tables, decode=DecodeInputs(rows, lengths, groups))
    shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, dtype, dtype)
    attention = twin.ops.prepare(step.placed(lambda tensor: tensor.to(twin.device)), shape)
    softmax = Softmax(SCALE, sinks=SINKS.to(twin.device))
    prefix = attention.prefix(q.to(twin.device), layer, softmax)
    assert prefix is not None
    found = attention.decode(q.to(twin.device), layer, softmax, None, prefix)
    wide, softmax = in_float64(on_device(layer, q.device)), Softmax(SCALE, sinks=SINKS.double())
    inputs = DecodeInputs(rows, lengths)
    expected = reference.decode_attention(q.double(), wide, tables, inputs, softmax, None)
    assert_close(found.cpu(), expected)
