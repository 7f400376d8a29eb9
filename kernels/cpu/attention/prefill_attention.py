"""Causal attention of prompt chunks; what is before several of them is read for all together."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention.attention_inputs import PrefillInputs
from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.prefix_groups import PrefixState
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.cpu.attention.group_attention import attend_groups
from pagedrun.kernels.cpu.attention.groups import LEVEL, chunk_groups
from pagedrun.kernels.cpu.attention.operands import Work
from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.kernel_set import KernelSet


def prefill_attention(
    q: Tensor,
    layer: KVLayer,
    block_tables: Tensor,
    chunks: PrefillInputs,
    softmax: Softmax,
    window: int | None,
    *,
    kernel_set: KernelSet | None = None,
) -> Tensor:
    """Attend from chunks of queries over the blocks of their tables; see the reference."""
    assert layer.keys.is_contiguous(), "a copy would cost too much"
    assert layer.values.is_contiguous(), "a copy would cost too much"
    starts, firsts = as_array(chunks.chunk_starts), as_array(chunks.first_positions)
    groups = chunk_groups(
        starts, as_array(chunks.table_rows), firsts, as_array(block_tables), layer.block_size
    )
    rows = np.arange(len(q), dtype=np.int32)
    highs = rows + np.repeat(firsts - starts[:-1] + 1, np.diff(starts))
    lows = np.zeros_like(highs) if window is None else np.maximum(highs - window, 0)
    state = None if (groups[:, LEVEL] == 0).all() else _empty_state(q)
    out = torch.empty_like(q)
    attend_groups(
        q,
        layer,
        Work(as_array(block_tables.contiguous()), rows, groups, lows, highs),
        softmax,
        state,
        out,
        KernelSet.usable(kernel_set),
    )
    return out


def _empty_state(q: Tensor) -> PrefixState:
    """Return memory for what tokens have read so far; every token that needs it writes it first."""
    return PrefixState(
        peaks=torch.empty(q.shape[:2]),
        masses=torch.empty(q.shape[:2]),
        totals=torch.empty(q.shape),
        num_partitions=torch.empty(0, dtype=torch.int32),
    )
