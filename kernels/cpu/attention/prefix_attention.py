"""Attention over shared prefixes: each partition is read once, for all rows that share it."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.prefix_groups import PrefixGroups, PrefixState
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.cpu.attention.group_attention import attend_groups
from pagedrun.kernels.cpu.attention.groups import prefix_levels
from pagedrun.kernels.cpu.attention.operands import Work
from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.kernel_set import KernelSet


def prefix_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    groups: PrefixGroups,
    softmax: Softmax,
    *,
    kernel_set: KernelSet | None = None,
) -> PrefixState:
    """Attend from each row over the partitions of its groups; see the reference."""
    num_rows, num_heads, head_dim = q.shape
    state = PrefixState(
        peaks=torch.full((num_rows, num_heads), -torch.inf),
        masses=torch.zeros(num_rows, num_heads),
        totals=torch.zeros(num_rows, num_heads, head_dim),
        num_partitions=groups.num_partitions,
    )
    rows, everything = as_array(groups.rows), np.zeros(0, np.int32)
    levels = prefix_levels(
        rows,
        as_array(groups.row_starts),
        as_array(groups.table_rows),
        as_array(groups.first_partitions),
        as_array(groups.last_partitions),
        num_rows,
    )
    attend_groups(
        q,
        layer,
        Work(as_array(block_tables.contiguous()), rows, levels, everything, everything),
        softmax,
        state,
        None,
        KernelSet.usable(kernel_set),
    )
    return state
