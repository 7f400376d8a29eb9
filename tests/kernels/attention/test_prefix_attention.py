"""Shared partitions read once, against attention over the whole context, row by row.

Independence of a row's bytes from its group is in `cpu/test_attention_invariance.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import DecodeInputs, KVLayer, KVScales, PrefixGroups, Softmax
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


def groups_of(context: Any, shared: Tensor, block_size: int) -> PrefixGroups:
    groups = PrefixSharing(share=True).groups(
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
