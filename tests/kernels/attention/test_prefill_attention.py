from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, Softmax
from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.reference import attention as reference
from tests.support.attention_cases import Chunk, in_float64, prefill_inputs
from tests.support.every_pair import every_pair

DTYPES = [torch.float32, torch.bfloat16]
P = PARTITION_TOKENS


def run(
    q: Tensor,
    context: Any,
    chunks: list[Chunk],
    window: int | None = None,
    backend: Any = group_attention,
) -> Tensor:
    """Run chunks (table row, first position, number of tokens) whose queries are `q` in order."""
    layer = KVLayer(context.key_cache, context.value_cache)
    if backend is reference:
        q, layer = q.double(), in_float64(layer)
    out: Tensor = backend.prefill_attention(
        q,
        layer,
        context.block_tables,
        prefill_inputs(chunks),
        Softmax(q.shape[2] ** -0.5),
        window,
    )
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 50, P + 3])
@pytest.mark.parametrize(
    ("num_kv_heads", "group", "head_dim", "block_size"),
    [(2, 2, 16, 16), (1, 7, 80, 5), (2, 1, 128, 256), (1, 4, 64, 1), (1, 8, 512, 16)],
)
def test_matches_reference(
    num_kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    torch.manual_seed(0)
    chunks = [(0, 0, 1), (1, 5, 63), (2, P, P), (3, P - 1, 3), (4, 3 * P + 2, 1), (5, 0, 300)]
    context = make_context(
        [first + size for _, first, size in chunks],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    num_tokens = sum(size for _, _, size in chunks)
    q = torch.randn(num_tokens, num_kv_heads * group, head_dim).to(dtype)
    out = run(q, context, chunks, window)
    assert out.dtype is dtype
    assert_close(out, run(q, context, chunks, window, backend=reference))


@every_pair(
    in_turn="shape",
    shape=[(2, 2, 64), (1, 1, 16), (1, 7, 80)],  # num_kv_heads, group, head_dim
    window=[None, 150],
    dtype=DTYPES,
)
def test_prefill_in_chunks_equals_prefill_at_once(
    shape: tuple[int, int, int],
    window: int | None,
    dtype: torch.dtype,
    make_context: Callable[..., Any],
) -> None:
    num_kv_heads, group, head_dim = shape
    torch.manual_seed(0)
    full = make_context(
        [600], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=16, dtype=dtype
    )
    q = torch.randn(600, num_kv_heads * group, head_dim).to(dtype)
    at_once = run(q, full, [(0, 0, 600)], window)
    for size in (1, 7, 128, 200):
        # As in a run: while a chunk is computed, nothing after it is written yet.
        growing = make_context(
            [600], num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=16, dtype=dtype
        )
        for cache in (growing.key_cache, growing.value_cache):
            cache.fill_(torch.nan)
        for first in range(0, 600, size):
            end = min(600, first + size)
            slots = torch.arange(first, end)
            place = (full.block_tables[0, slots // 16].long(), slice(None), slots % 16)
            growing.key_cache[place] = full.key_cache[place]
            growing.value_cache[place] = full.value_cache[place]
            chunk = run(q[first:end], growing, [(0, first, end - first)], window)
            assert torch.equal(chunk, at_once[first:end]), (size, first)


@pytest.mark.parametrize("precision", ["none", "bf16", "ieee"])
def test_leaves_the_precision_setting_of_torch_as_it_was(
    precision: str, make_context: Callable[..., Any]
) -> None:
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    context = make_context([3], num_kv_heads=1, head_dim=16, block_size=4, dtype=torch.bfloat16)
    try:
        setting.fp32_precision = precision
        run(torch.randn(3, 1, 16).bfloat16(), context, [(0, 0, 3)])
        assert setting.fp32_precision == precision
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize("backend", [group_attention, reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("spoilt", ["key_cache", "value_cache"])
def test_a_later_token_that_is_nan_does_not_reach_an_earlier_one(
    backend: Any, dtype: torch.dtype, poison: float, spoilt: str, make_context: Callable[..., Any]
) -> None:
    """0 x NaN is NaN: a masked key would spoil the tokens before it, and the blocks they share."""
    context = make_context([150], num_kv_heads=2, head_dim=16, block_size=16, dtype=dtype)
    position, size = 137, 16
    block = int(context.block_tables[0, position // size])
    getattr(context, spoilt)[block, :, position % size, 3] = poison
    q = torch.randn(150, 4, 16).to(dtype)
    layer = KVLayer(context.key_cache, context.value_cache)
    chunks = prefill_inputs([(0, 0, 150)])
    out = backend.prefill_attention(q, layer, context.block_tables, chunks, Softmax(0.25), None)
    assert out[:position].isfinite().all()
    assert not out[position:].isfinite().all(dim=-1).any()
