"""Shared partitions read once, against attention over the whole context, row by row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, KVScales, PrefixGroups, Softmax
from pagedrun.kernels.cpu.attention import group_attention
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.reference import attention as reference
from pagedrun.paged.execution.prefix_sharing import PrefixSharing

P = PARTITION_TOKENS
DTYPES = [torch.float32, torch.bfloat16]


def nested(
    make_context: Callable[..., Any], num_kv_heads: int, head_dim: int, block_size: int, dtype: Any
) -> tuple[Any, Tensor, Tensor]:
    """Return a context of seven rows, its lengths, and each row's number of shared partitions.

    Rows 0-2 share four partitions, rows 0-4 the first two of them, row 5 shares with nobody who
    runs at the moment but is on the shared path, row 6 has no shared partition.
    """
    lengths = [4 * P + 9, 5 * P, 4 * P + 1, 2 * P + 77, 3 * P + 5, P + 3, 40]
    context = make_context(
        lengths, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    for rows, partitions in (([1, 2], 4), ([3, 4], 2)):
        num_blocks = partitions * P // block_size
        for row in rows:
            context.block_tables[row, :num_blocks] = context.block_tables[0, :num_blocks]
    return context, torch.tensor(lengths, dtype=torch.int32), torch.tensor([4, 4, 4, 2, 2, 1, 0])


def groups_of(context: Any, shared: Tensor, block_size: int, share: bool = True) -> PrefixGroups:
    groups = PrefixSharing(share=share).groups(
        context.block_tables.numpy(),
        np.arange(len(shared), dtype=np.int32),
        shared.numpy().astype(np.int32),
        block_size,
    )
    assert groups is not None
    return groups


@pytest.mark.parametrize("backend", [CpuBackend(), reference])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_kv_heads", "group", "head_dim", "block_size"),
    [(2, 2, 16, 16), (1, 7, 80, 64), (2, 1, 128, 128), (1, 4, 64, 1), (1, 8, 512, 16)],
)
def test_prefix_then_decode_equals_decode_of_everything(
    num_kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    backend: Any,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    context, lengths, shared = nested(make_context, num_kv_heads, head_dim, block_size, dtype)
    q = torch.randn(len(lengths), num_kv_heads * group, head_dim).to(dtype)
    rows = DecodeInputs(torch.arange(len(lengths), dtype=torch.int32), lengths)
    softmax = Softmax(head_dim**-0.5)
    layer = KVLayer(context.key_cache, context.value_cache)
    groups = groups_of(context, shared, block_size)
    prefix = backend.prefix_attention(q, layer, context.block_tables, groups, softmax)
    out = backend.decode_attention(q, layer, context.block_tables, rows, softmax, None, prefix)
    wide = KVLayer(layer.keys.double(), layer.values.double())
    expected = reference.decode_attention(
        q.double(), wide, context.block_tables, rows, softmax, None
    )
    assert_close(out, expected)


@pytest.mark.parametrize("backend", [CpuBackend(), reference])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [(torch.bfloat16, torch.int8), (torch.float32, torch.float8_e4m3fn)]
)
def test_capped_scores_of_quantised_caches(
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    softcap: float | None,
    backend: Any,
    make_context: Callable[..., Any],
    assert_close: Callable[[Tensor, Tensor], None],
) -> None:
    context, lengths, shared = nested(make_context, 2, 64, 16, torch.float32)
    q = torch.randn(len(lengths), 6, 64).to(dtype)
    codes = [torch.randint(-99, 99, context.key_cache.shape).to(cache_dtype) for _ in range(2)]
    scales = KVScales(*(torch.rand(2, *codes[0].shape[:3]) / 50))
    layer = KVLayer(codes[0], codes[1], scales)
    rows = DecodeInputs(torch.arange(len(lengths), dtype=torch.int32), lengths)
    tables, groups = context.block_tables, groups_of(context, shared, 16)
    softmax = Softmax(0.2, softcap)
    prefix = backend.prefix_attention(q, layer, tables, groups, softmax)
    out = backend.decode_attention(q, layer, tables, rows, softmax, None, prefix)
    wide: Any = [
        code.double() * scale[..., None]
        for code, scale in zip(codes, (scales.keys, scales.values), strict=True)
    ]
    expected = reference.decode_attention(q.double(), KVLayer(*wide), tables, rows, softmax, None)
    assert_close(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "head_dim"), [(1, 16), (2, 128), (5, 64)])
def test_a_row_gets_the_same_bytes_in_any_group(
    group: int, head_dim: int, dtype: torch.dtype, make_context: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    context, lengths, shared = nested(make_context, 2, head_dim, 16, dtype)
    q = torch.randn(len(lengths), 2 * group, head_dim).to(dtype)
    layer = KVLayer(context.key_cache, context.value_cache)
    together, alone = (
        group_attention.prefix_attention(
            q, layer, context.block_tables, groups_of(context, shared, 16, share), Softmax(0.1)
        )
        for share in (True, False)
    )
    for field in ("max_scores", "sum_exps", "accs"):
        assert torch.equal(getattr(together, field), getattr(alone, field)), field


def test_a_row_gets_the_same_bytes_in_a_crowd(make_context: Callable[..., Any]) -> None:
    """Group sizes cross every height that the products are padded to, and a tile's limit."""
    torch.manual_seed(0)
    context = make_context([3 * P], num_kv_heads=1, head_dim=64, block_size=16, dtype=torch.float32)
    layer = KVLayer(context.key_cache, context.value_cache)
    q = torch.randn(700, 2, 64)

    def totals(num_rows: int) -> Tensor:
        groups = groups_of_copies(num_rows)
        tables = context.block_tables.expand(num_rows, -1).contiguous()
        return group_attention.prefix_attention(
            q[:num_rows], layer, tables, groups, Softmax(0.1)
        ).accs

    def groups_of_copies(num_rows: int) -> PrefixGroups:
        tables = context.block_tables.expand(num_rows, -1).numpy()
        rows = np.arange(num_rows, dtype=np.int32)
        groups = PrefixSharing(share=True).groups(tables, rows, np.full(num_rows, 3, np.int32), 16)
        assert groups is not None
        assert len(groups.table_rows) == 1
        return groups

    everyone = totals(700)
    for num_rows in (1, 2, 7, 8, 9, 16, 17, 100, 256, 257):
        assert torch.equal(totals(num_rows), everyone[:num_rows]), num_rows
