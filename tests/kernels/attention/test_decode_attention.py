from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, KVScales, Softmax
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.reference import attention as reference
from tests.support.attention_cases import as_int32, in_float64

DTYPES = [torch.float32, torch.bfloat16]
P = PARTITION_TOKENS


def expect(q: Tensor, context: Any, *rest: Any) -> Tensor:
    layer = in_float64(layer_of(context))
    return reference.decode_attention(q.double(), layer, context.block_tables, *rest)


def layer_of(context: Any) -> KVLayer:
    return KVLayer(context.key_cache, context.value_cache)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 33, P])
@pytest.mark.parametrize(
    ("num_kv_heads", "group", "head_dim", "block_size"),
    [
        *((2, 2, 16, 16), (1, 7, 80, 5), (2, 1, 128, 256), (1, 4, 64, 1), (2, 2, 128, 64)),
        (1, 8, 512, 16),
    ],
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
    # Around the borders of blocks and partitions, and rows that share a table.
    lengths = [1, block_size, block_size + 1, P - 1, P, P + 1, 3 * P + 17]
    context = make_context(
        lengths, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    table_rows = as_int32([*range(len(lengths)), 6, 6, 6])
    context_lens = as_int32([*lengths, 1, P, 2 * P + 5])
    q = torch.randn(len(table_rows), num_kv_heads * group, head_dim).to(dtype)
    rest = (DecodeInputs(table_rows, context_lens), Softmax(head_dim**-0.5), window)
    out = CpuBackend.decode_attention(q, layer_of(context), context.block_tables, *rest)
    assert out.dtype is dtype
    assert_close(out, expect(q, context, *rest))


@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_row_alone_equals_row_in_batch(
    dtype: torch.dtype, make_context: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    lengths = [5, 127, 128, 300, 411, 700]
    context = make_context(lengths, num_kv_heads=2, head_dim=80, block_size=16, dtype=dtype)
    layer = layer_of(context)
    q = torch.randn(6, 6, 80).to(dtype)
    rows, lens = torch.arange(6, dtype=torch.int32), as_int32(lengths)
    everyone = DecodeInputs(rows, lens)
    together = CpuBackend.decode_attention(
        q, layer, context.block_tables, everyone, Softmax(0.1), None
    )
    for row in range(6):
        one, table = slice(row, row + 1), context.block_tables[row : row + 1]
        only = DecodeInputs(as_int32([0]), lens[one])
        alone = CpuBackend.decode_attention(q[one], layer, table, only, Softmax(0.1), None)
        assert torch.equal(alone, together[one])


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_capped_and_an_empty_slot_is_zero(
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    lengths = [300, 1, 7]
    context = make_context(lengths, num_kv_heads=2, head_dim=64, block_size=16, dtype=dtype)
    q = (torch.randn(3, 4, 64) * 4).to(dtype)
    rows = DecodeInputs(torch.arange(3, dtype=torch.int32), as_int32([300, 0, 7]))
    rest: tuple[Any, ...] = (rows, Softmax(0.5, softcap=3.0), 250)
    out = CpuBackend.decode_attention(q, layer_of(context), context.block_tables, *rest)
    expected = expect(q, context, *rest)
    assert_close(out, expected)
    assert not out[1].any()
    assert (expected - expect(q, context, rows, Softmax(0.5), 250)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.bfloat16, torch.int8),
        (torch.float32, torch.float8_e4m3fn),
        pytest.param(torch.bfloat16, torch.float8_e4m3fn, marks=pytest.mark.long),
        pytest.param(torch.float32, torch.int8, marks=pytest.mark.long),
    ],
)
def test_quantised_caches(
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    lengths = [300, 17]
    context = make_context(lengths, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.float32)
    scales, codes = [], []
    for cache in (context.key_cache, context.value_cache):
        scale = cache.abs().amax(dim=-1) / 100  # NaN where nothing is written
        codes.append((cache / scale[..., None]).nan_to_num(5.0).to(cache_dtype))
        scales.append(scale)
    q = torch.randn(2, 6, 64).to(dtype)
    rows = DecodeInputs(torch.arange(2, dtype=torch.int32), as_int32(lengths))
    rest: tuple[Any, ...] = (context.block_tables, rows, Softmax(0.125), None)
    layer = KVLayer(codes[0], codes[1], KVScales(*scales))
    out = CpuBackend.decode_attention(q, layer, *rest)
    assert_close(out, reference.decode_attention(q.double(), layer, *rest))
    # The meaning of codes and scales, without the code under test.
    assert_close(out, reference.decode_attention(q.double(), in_float64(layer), *rest))


def test_every_float8_is_read_as_it_is() -> None:
    """By a cache of one token: the result is its value."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(1, 1, 1, 256)
    key, ones = torch.zeros_like(codes), torch.ones(1, 1, 1)
    layer = KVLayer(key, codes, KVScales(ones, ones))
    rows = DecodeInputs(as_int32([0]), as_int32([1]))
    q, tables = torch.ones(1, 1, 256), as_int32([0])[None]
    out = CpuBackend.decode_attention(q, layer, tables, rows, Softmax(1.0), None)
    assert torch.equal(out.view(-1).nan_to_num(777), codes.view(-1).float().nan_to_num(777))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_neither_overflow_nor_vanish(
    dtype: torch.dtype,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    context = make_context([400], num_kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
    q = (torch.randn(1, 2, 32) * 300).to(dtype)  # scores of thousands: one key takes all
    rest: tuple[Any, ...] = (DecodeInputs(as_int32([0]), as_int32([400])), Softmax(1.0), None)
    out = CpuBackend.decode_attention(q, layer_of(context), context.block_tables, *rest)
    assert_close(out, expect(q, context, *rest))


def test_a_nan_in_the_context_is_not_hidden(make_context: Callable[..., Any]) -> None:
    context = make_context([40], num_kv_heads=1, head_dim=16, block_size=8, dtype=torch.float32)
    context.key_cache[context.block_tables[0, 2], 0, 3, 1] = torch.nan
    q = torch.randn(1, 1, 16)
    rows = DecodeInputs(as_int32([0]), as_int32([40]))
    out = CpuBackend.decode_attention(
        q, layer_of(context), context.block_tables, rows, Softmax(1.0), None
    )
    assert out.isnan().all()


def test_refuses_a_cache_it_would_have_to_copy() -> None:
    cache = torch.zeros(4, 1, 8, 32)[..., ::2]
    q, tables = torch.zeros(1, 1, 16), as_int32([0])[None]
    rows = DecodeInputs(as_int32([0]), as_int32([1]))
    with pytest.raises(AssertionError):
        CpuBackend.decode_attention(q, KVLayer(cache, cache), tables, rows, Softmax(1.0), None)
