"""Rows whose prefixes nest and branch, for the tests of shared prefixes on a GPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import PrefixGroups
from pagedrun.kernels.gpu.attention.prefix_work import UNIT_PARTITIONS, UNIT_TOKENS
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from tests.kernels.conftest import Context, build_context
from tests.support.attention_cases import as_int32

P, U = PARTITION_TOKENS, UNIT_PARTITIONS


def share_blocks(
    context: Context, block_size: int, paths: list[tuple[int, list[int], int]]
) -> None:
    """Let rows read the first partitions of another: (that row, the rows, partitions)."""
    for source, rows, partitions in paths:
        width = partitions * P // block_size
        context.block_tables[rows, :width] = context.block_tables[source, :width]


def nested(
    head_dim: int, group: int, block_size: int, dtype: torch.dtype
) -> tuple[Tensor, Context, Tensor, Tensor]:
    """Return queries, memory, lengths and shared partitions of nine rows.

    Rows 0-2 share more than a unit, rows 0-4 a part of the first unit, in which rows 3 and 4 go on
    together on a path of their own; row 5 is on the path of all but leaves it early, row 6 shares
    nothing, row 7 is an empty slot, and row 8 has its prefix to itself at the moment.
    """
    shared = [U + 2, U + 2, U + 2, 5, 5, 1, 0, 0, 3]
    lengths = [(U + 2) * P + 9, (U + 3) * P, (U + 2) * P + 1, 6 * P + 5, 5 * P + 77, P + 3, 40]
    lengths += [0, 3 * P + 1]
    context = build_context(
        [max(1, length) for length in lengths],
        num_kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype,
    )  # fmt: skip
    share_blocks(
        context, block_size, [(0, [1, 2], U + 2), (0, [3, 4], 2), (3, [4], 5), (0, [5], 1)]
    )
    q = torch.randn(len(lengths), 2 * group, head_dim, generator=torch.Generator().manual_seed(1))
    return q.to(dtype), context, as_int32(lengths), as_int32(shared)


def groups_of(
    context: Context, shared: Tensor, block_size: int, share: bool = True, rows: Any = None
) -> PrefixGroups:
    table_rows = np.arange(len(shared), dtype=np.int32) if rows is None else rows
    groups = PrefixSharing(share=share).groups(
        context.block_tables.numpy(), table_rows, shared.numpy(), block_size
    )
    assert groups is not None
    return groups


def branching(num_kv_heads: int) -> tuple[Context, Tensor, PrefixGroups]:
    """Return memory, shared partitions and groups of four rows that share two units; two of them
    each go on together over one more unit and a partition."""
    context = build_context(
        [3 * UNIT_TOKENS + P + 7] * 4,
        num_kv_heads=num_kv_heads, head_dim=64, block_size=64, dtype=torch.bfloat16,
    )  # fmt: skip
    share_blocks(context, 64, [(0, [1, 2, 3], 2 * U), (0, [1], 3 * U + 1), (2, [3], 3 * U + 1)])
    shared = as_int32([3 * U + 1] * 4)
    return context, shared, groups_of(context, shared, 64)
