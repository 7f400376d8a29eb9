"""Causal attention of prompt chunks; what is before several of them is read for all together."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.attention.group_attention import attend_groups
from pagedrun.kernels.cpu.attention.groups import LEVEL, chunk_groups
from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.kv_scales import KVScales
from pagedrun.kernels.prefix_groups import PrefixState


def prefill_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    chunk_starts: Tensor,
    table_rows: Tensor,
    first_positions: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    scales: KVScales | None = None,
    *,
    kernel_set: KernelSet | None = None,
) -> Tensor:
    """Attend from chunks of queries over the blocks of their tables; see the reference."""
    assert key_cache.is_contiguous(), "a copy would cost too much"
    assert value_cache.is_contiguous(), "a copy would cost too much"
    starts, firsts = as_array(chunk_starts), as_array(first_positions)
    groups = chunk_groups(
        starts, as_array(table_rows), firsts, as_array(block_tables), key_cache.shape[2]
    )
    rows = np.arange(len(q), dtype=np.int32)
    highs = rows + np.repeat(firsts - starts[:-1] + 1, np.diff(starts))
    lows = np.zeros_like(highs) if window is None else np.maximum(highs - window, 0)
    state = None if (groups[:, LEVEL] == 0).all() else _empty_state(q)
    out = torch.empty_like(q)
    attend_groups(
        q,
        key_cache,
        value_cache,
        block_tables,
        rows,
        groups,
        lows,
        highs,
        scale,
        softcap,
        scales,
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
