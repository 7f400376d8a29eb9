"""Attention to both sides: texts whose queries see the keys behind them as well."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, Softmax
from pagedrun.kernels.reference import attention as reference
from tests.kernels.conftest import Twin
from tests.support.attention_cases import Chunk, in_float64, on_device, prefill_inputs
from tests.support.every_pair import every_pair

# A tile of the GPU kernel has 16 to 64 of these tokens, and 32 or 64 keys.
SIZES = [1, 15, 16, 17, 70]
CHUNKS = [(table, 0, size) for table, size in enumerate(SIZES)]
STARTS = [0, *accumulate(SIZES)]
WINDOWS = [None, 1, 9, 65]
DTYPES = [torch.float32, torch.bfloat16]


def attend(
    q: Tensor, context: Any, chunks: list[Chunk], window: int | None, twin: Twin | None
) -> Tensor:
    """Attend by a backend, or by the reference in float64; the result is on the CPU."""
    layer = KVLayer(context.key_cache, context.value_cache)
    inputs = replace(prefill_inputs(chunks), is_causal=False)
    softmax = Softmax(q.shape[2] ** -0.5)
    if twin is None:
        return reference.prefill_attention(
            q.double(), in_float64(layer), context.block_tables, inputs, softmax, window
        )
    ops: Any = twin.ops
    out: Tensor = ops.prefill_attention(
        q.to(twin.device),
        on_device(layer, twin.device),
        context.block_tables.to(twin.device),
        inputs.placed(lambda each: each.to(twin.device)),
        softmax,
        window,
    )
    return out.cpu()


def queries(num_tokens: int, num_heads: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(num_tokens, num_heads, 32).to(dtype)


@every_pair(in_turn="dtype", window=WINDOWS, dtype=DTYPES)
def test_matches_reference(
    window: int | None,
    dtype: torch.dtype,
    twin: Twin,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    context = make_context(SIZES, num_kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
    q = queries(sum(SIZES), 2, dtype)
    out = attend(q, context, CHUNKS, window, twin)
    assert_close(out, attend(q, context, CHUNKS, window, None))


def test_the_reference_is_softmax_of_all_scores(make_context: Callable[..., Any]) -> None:
    context = make_context([7], num_kv_heads=1, head_dim=32, block_size=16, dtype=torch.float32)
    q = queries(7, 1, torch.float32)
    out = attend(q, context, [(0, 0, 7)], None, None)
    layer = KVLayer(context.key_cache, context.value_cache)
    keys, values = reference.gather_context(layer, context.block_tables[0], 7)
    weights = torch.softmax(q[:, 0].double() @ keys[0].double().T / 32**0.5, dim=-1)
    torch.testing.assert_close(out[:, 0], weights @ values[0].double())


@every_pair(in_turn="dtype", window=[None, 9], dtype=DTYPES)
def test_a_text_alone_has_the_bytes_of_a_text_among_others(
    window: int | None, dtype: torch.dtype, twin: Twin, make_context: Callable[..., Any]
) -> None:
    context = make_context(SIZES, num_kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
    q = queries(sum(SIZES), 2, dtype)
    together = attend(q, context, CHUNKS, window, twin)
    for chunk, start, size in zip(CHUNKS, STARTS, SIZES, strict=False):
        own = slice(start, start + size)
        assert torch.equal(attend(q[own], context, [chunk], window, twin), together[own]), size


@every_pair(in_turn="spoilt", position=[0, 66, 76], spoilt=["key_cache", "value_cache"])
def test_nan_spoils_those_who_see_it_and_no_others(
    spoilt: str, position: int, twin: Twin, make_context: Callable[..., Any]
) -> None:
    sizes = [5, 77, 5]
    context = make_context(sizes, num_kv_heads=2, head_dim=32, block_size=16, dtype=torch.float32)
    block = int(context.block_tables[1, position // 16])
    getattr(context, spoilt)[block, 1, position % 16, 3] = torch.nan
    chunks = [(table, 0, size) for table, size in enumerate(sizes)]
    q = queries(sum(sizes), 4, torch.float32)
    for window in (None, 20):
        seen = torch.zeros(sum(sizes), 4, dtype=torch.bool)
        reach = 77 if window is None else window
        first, last = max(position - reach + 1, 0), min(position + reach, 77)
        seen[5 + first : 5 + last, 2:] = True
        out = attend(q, context, chunks, window, twin)
        assert torch.equal(out.isnan().all(dim=-1), seen)
        assert torch.equal(out.isfinite().all(dim=-1), ~seen)
