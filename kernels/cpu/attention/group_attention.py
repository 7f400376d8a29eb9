"""Prefill and shared-prefix attention: groups of rows that read partitions together.

Both entry points make groups (`inputs`) and attend from them level by level. There is a kernel for
each kind of product (AMX, pairs of bfloat16, float32), over the same tasks (`attend`).
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import (
    KVLayer,
    PrefillInputs,
    PrefixGroups,
    PrefixState,
    Softmax,
)
from pagedrun.kernels.cpu.attention import amx_products, float_products, pair_products
from pagedrun.kernels.cpu.attention.attend import DIM_STEP, attend_tiles
from pagedrun.kernels.cpu.attention.inputs import (
    BLOCK_ROWS,
    LEVEL,
    Cache,
    Relative,
    SoftmaxNumbers,
    State,
    Work,
    bfloat16_operands,
    chunk_groups,
    cut_tasks,
    float32_operands,
    prefix_levels,
)
from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, num_threads, set_threads
from pagedrun.kernels.cpu.kv_cache import scale_arrays
from pagedrun.kernels.cpu.simd import amx
from pagedrun.kernels.cpu.simd.arrays import share_tasks
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
    assert softmax.relative is None or not (chunks.is_causal or firsts.any()), "whole texts alone"
    groups = chunk_groups(
        starts, as_array(chunks.table_rows), firsts, as_array(block_tables), layer.block_size
    )
    rows = np.arange(len(q), dtype=np.int32)
    positions = rows + np.repeat(firsts - starts[:-1], np.diff(starts))
    highs = positions + 1
    lows = np.zeros_like(highs) if window is None else np.maximum(highs - window, 0)
    if not chunks.is_causal:
        lengths = np.diff(starts)
        highs = np.repeat(firsts + lengths, lengths)
        if window is not None:
            highs = np.minimum(highs, positions + np.int32(window))
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
    """Return memory for a state; each token writes it before reading."""
    return PrefixState(
        max_scores=torch.empty(q.shape[:2]),
        sum_exps=torch.empty(q.shape[:2]),
        accs=torch.empty(q.shape),
        num_partitions=torch.empty(0, dtype=torch.int32),
    )


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
        max_scores=torch.full((num_rows, num_heads), -torch.inf),
        sum_exps=torch.zeros(num_rows, num_heads),
        accs=torch.zeros(num_rows, num_heads, head_dim),
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


MAX_TILE_ROWS = 512  # queries and accs of a tile stay in L2
TASKS_PER_THREAD = 4


def attend_groups(
    q: Tensor,
    layer: KVLayer,
    work: Work,
    softmax: Softmax,
    state: PrefixState | None,
    out: Tensor | None,
    kernel_set: KernelSet,
) -> None:
    """Attend from the tokens of each group over its partitions.

    q: [num_tokens, num_heads, head_dim]. Tokens whose groups reach the end are written to `out`;
    the others to `state`, which may be None if no token has two groups.
    """
    num_heads, head_dim = q.shape[1:]
    group_size = num_heads // layer.num_kv_heads
    num_workers = num_threads()
    rows_per_task = len(work.rows) * num_heads // (TASKS_PER_THREAD * num_workers)
    tile_rows = min(MAX_TILE_ROWS, max(BLOCK_ROWS, rows_per_task // BLOCK_ROWS * BLOCK_ROWS))
    attend = attend_kernel(kernel_set, q.dtype, layer.keys.dtype)
    key_scales, value_scales = scale_arrays(layer.scales)
    set_threads(num_workers)
    attend(
        num_workers,
        max(1, tile_rows // group_size),
        -(-head_dim // DIM_STEP) * DIM_STEP,
        as_array(q.contiguous()),
        Cache(as_array(layer.keys), as_array(layer.keys.view(-1)), key_scales),
        Cache(as_array(layer.values), as_array(layer.values.view(-1)), value_scales),
        work,
        SoftmaxNumbers.of(softmax),
        Relative.of(softmax.relative, q.dtype),
        State.of(state),
        as_array(torch.empty(0, 0, 0, dtype=q.dtype) if out is None else out),
    )


def attend_kernel(kernel_set: KernelSet, dtype: torch.dtype, cache_dtype: torch.dtype) -> Any:
    """Return the kernel for the dtypes of queries and cache."""
    if dtype is torch.bfloat16 and cache_dtype is not torch.float32:
        return _ATTEND.get(kernel_set, _attend_float32)
    return _attend_float32


@kernel
def _attend_amx(
    num_threads: Any,
    tile_tokens: Any,
    dim: Any,
    q: Any,
    keys: Any,
    values: Any,
    work: Any,
    softmax: Any,
    relative: Any,
    state: Any,
    out: Any,
) -> None:
    """Attend level by level, on AMX tiles."""
    tiles, tasks, num_blocks = cut_tasks(q, keys, work.groups, tile_tokens)
    for level in range(tasks.shape[0] - 1):
        shares = share_tasks(num_threads, tasks[level + 1] - tasks[level])
        for thread in numba.prange(num_threads):
            amx.configure(amx.FULL_TILES)
            attend_tiles(
                shares, thread, tasks[level], tiles, num_blocks, dim,
                q, keys, values, work, softmax, relative, state, out,
                bfloat16_operands(num_blocks, dim),
                amx_products,
            )  # fmt: skip
            amx.release()


@kernel
def _attend_bfloat16(
    num_threads: Any,
    tile_tokens: Any,
    dim: Any,
    q: Any,
    keys: Any,
    values: Any,
    work: Any,
    softmax: Any,
    relative: Any,
    state: Any,
    out: Any,
) -> None:
    """Attend level by level, in pairs of bfloat16."""
    tiles, tasks, num_blocks = cut_tasks(q, keys, work.groups, tile_tokens)
    for level in range(tasks.shape[0] - 1):
        shares = share_tasks(num_threads, tasks[level + 1] - tasks[level])
        for thread in numba.prange(num_threads):
            attend_tiles(
                shares, thread, tasks[level], tiles, num_blocks, dim,
                q, keys, values, work, softmax, relative, state, out,
                bfloat16_operands(num_blocks, dim),
                pair_products,
            )  # fmt: skip


@kernel
def _attend_float32(
    num_threads: Any,
    tile_tokens: Any,
    dim: Any,
    q: Any,
    keys: Any,
    values: Any,
    work: Any,
    softmax: Any,
    relative: Any,
    state: Any,
    out: Any,
) -> None:
    """Attend level by level, in float32."""
    tiles, tasks, num_blocks = cut_tasks(q, keys, work.groups, tile_tokens)
    for level in range(tasks.shape[0] - 1):
        shares = share_tasks(num_threads, tasks[level + 1] - tasks[level])
        for thread in numba.prange(num_threads):
            attend_tiles(
                shares, thread, tasks[level], tiles, num_blocks, dim,
                q, keys, values, work, softmax, relative, state, out,
                float32_operands(num_blocks, dim),
                float_products,
            )  # fmt: skip


_ATTEND = {KernelSet.AMX: _attend_amx, KernelSet.AVX512_BF16: _attend_bfloat16}
