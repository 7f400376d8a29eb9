"""Attention to both sides: texts whose queries see the keys behind them as well."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, Softmax
from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.reference import attention as reference
from tests.support.attention_cases import Chunk, in_float64, prefill_inputs

SIZES = [1, 2, 31, 64, 100, 300]


def attend(q: Tensor, context: Any, chunks: list[Chunk], window: int | None, ops: Any) -> Tensor:
    layer = KVLayer(context.key_cache, context.value_cache)
    if ops is reference:
        q, layer = q.double(), in_float64(layer)
    inputs = replace(prefill_inputs(chunks), is_causal=False)
    softmax = Softmax(q.shape[2] ** -0.5)
    out: Tensor = ops.prefill_attention(q, layer, context.block_tables, inputs, softmax, window)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 9, 65])
def test_matches_reference(
    window: int | None,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    context = make_context(SIZES, num_kv_heads=2, head_dim=32, block_size=16, dtype=dtype)
    q = torch.randn(sum(SIZES), 4, 32).to(dtype)
    chunks = [(table, 0, size) for table, size in enumerate(SIZES)]
    out = attend(q, context, chunks, window, group_attention)
    assert_close(out, attend(q, context, chunks, window, reference))


def test_the_reference_is_softmax_of_all_scores(make_context: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    context = make_context([7], num_kv_heads=1, head_dim=16, block_size=16, dtype=torch.float32)
    q = torch.randn(7, 1, 16)
    out = attend(q, context, [(0, 0, 7)], None, reference)
    layer = KVLayer(context.key_cache, context.value_cache)
    keys, values = reference.gather_context(layer, context.block_tables[0], 7)
    weights = torch.softmax(q[:, 0].double() @ keys[0].double().T / 4, dim=-1)
    torch.testing.assert_close(out[:, 0], weights @ values[0].double())


@pytest.mark.parametrize("window", [None, 9])
def test_a_text_alone_has_the_bytes_of_a_text_among_others(
    window: int | None, make_context: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    context = make_context(SIZES, num_kv_heads=2, head_dim=32, block_size=16, dtype=torch.float32)
    q = torch.randn(sum(SIZES), 2, 32)
    chunks = [(table, 0, size) for table, size in enumerate(SIZES)]
    together = attend(q, context, chunks, window, group_attention)
    start = 0
    for chunk, size in zip(chunks, SIZES, strict=True):
        own = slice(start, start + size)
        alone = attend(q[own], context, [chunk], window, group_attention)
        assert torch.equal(alone, together[own])
        start += size
