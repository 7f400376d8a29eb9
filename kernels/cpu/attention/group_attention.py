"""Attention of groups of tokens, on the processor's best units for the dtype at hand."""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.attention import float_products, pair_products, tile_products
from pagedrun.kernels.cpu.attention.attend import DIM_STEP, attend_tiles
from pagedrun.kernels.cpu.attention.groups import (
    cut_tiles,
)
from pagedrun.kernels.cpu.attention.softmax import BLOCK_ROWS
from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.exp2 import LOG2_E
from pagedrun.kernels.cpu.jit import kernel, num_threads
from pagedrun.kernels.cpu.scale_arrays import scale_arrays
from pagedrun.kernels.cpu.simd.amx import configure, release, tile_shapes
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.kv_scales import KVScales
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.kernels.prefix_groups import PrefixState

Int32s = NDArray[np.int32]

MAX_TILE_ROWS = 512  # queries and totals of a tile stay in L2
TASKS_PER_THREAD = 4


def attend_groups(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    rows: Int32s,
    groups: NDArray[np.int64],
    lows: Int32s,
    highs: Int32s,
    scale: float,
    softcap: float | None,
    scales: KVScales | None,
    state: PrefixState | None,
    out: Tensor | None,
    kernel_set: KernelSet,
) -> None:
    """Attend from the tokens of each group over its partitions.

    q: [num_tokens, num_heads, head_dim]. rows, groups: see `groups`. lows, highs: [num_tokens]
    int32, the positions that a token sees; empty where every token sees all. Caches, tables,
    softcap and scales: as for the reference. Tokens whose groups go to the end are written to
    `out`; what others have read is kept in `state`, which may be None if no token has two groups.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = key_cache.shape[1]
    group_size = num_heads // num_kv_heads
    num_workers = num_threads()
    rows_per_task = len(rows) * num_heads // (TASKS_PER_THREAD * num_workers)
    tile_rows = min(MAX_TILE_ROWS, max(BLOCK_ROWS, rows_per_task // BLOCK_ROWS * BLOCK_ROWS))
    tile_tokens = max(1, tile_rows // group_size)
    attend = _attend_floats
    if q.dtype is torch.bfloat16 and key_cache.dtype is torch.bfloat16:
        attend = _ATTEND.get(kernel_set, _attend_floats)
    numba.set_num_threads(num_workers)
    attend(
        as_array(q.contiguous()),
        as_array(key_cache),
        as_array(value_cache),
        as_array(key_cache.view(-1)),
        as_array(value_cache.view(-1)),
        *scale_arrays(scales),
        as_array(block_tables.contiguous()),
        rows,
        groups,
        lows,
        highs,
        tile_tokens,
        num_workers,
        -(-head_dim // DIM_STEP) * DIM_STEP,
        -(-tile_tokens * group_size // BLOCK_ROWS),
        np.float32(scale) if softcap else np.float32(scale) * LOG2_E,
        np.float32(softcap or 0.0),
        *_state_arrays(state),
        as_array(torch.empty(0, 0, 0, dtype=q.dtype) if out is None else out),
        tile_shapes(),
    )


def _state_arrays(state: PrefixState | None) -> tuple[NDArray[np.float32], ...]:
    if state is None:
        nothing = np.empty((0, 0), np.float32)
        return nothing, nothing, np.empty((0, 0, 0), np.float32)
    return as_array(state.peaks), as_array(state.masses), as_array(state.totals)


@kernel
def _attend_tiles(
    q: Any,
    key_cache: Any,
    value_cache: Any,
    flat_keys: Any,
    flat_values: Any,
    key_scales: Any,
    value_scales: Any,
    block_tables: Any,
    rows: Any,
    groups: Any,
    lows: Any,
    highs: Any,
    tile_tokens: Any,
    num_workers: Any,
    padded_dim: Any,
    num_blocks: Any,
    scale: Any,
    softcap: Any,
    peaks: Any,
    masses: Any,
    totals: Any,
    out: Any,
    shapes: Any,
) -> None:
    """Attend level by level, on AMX tiles."""
    tiles, levels = cut_tiles(groups, tile_tokens)
    num_kv_heads = key_cache.shape[1]
    for level in range(levels.shape[0] - 1):
        first, last = levels[level] * num_kv_heads, levels[level + 1] * num_kv_heads
        for worker in numba.prange(num_workers):
            keys = np.zeros(PARTITION_TOKENS * padded_dim, np.uint16)
            values = np.zeros(PARTITION_TOKENS * padded_dim, np.uint16)
            packed = np.zeros(PARTITION_TOKENS * padded_dim, np.uint16)
            queries = np.zeros(num_blocks * padded_dim // 2 * BLOCK_ROWS, np.uint32)
            block_rows = np.zeros(BLOCK_ROWS * padded_dim, np.uint16)
            weights = np.zeros(PARTITION_TOKENS // 2 * BLOCK_ROWS, np.uint32)
            configure(shapes)
            attend_tiles(
                first + worker,
                last,
                num_workers,
                q,
                key_cache,
                value_cache,
                flat_keys,
                flat_values,
                key_scales,
                value_scales,
                block_tables,
                rows,
                groups,
                lows,
                highs,
                tiles,
                scale,
                softcap,
                padded_dim,
                peaks,
                masses,
                totals,
                out,
                (keys, values, packed, queries, block_rows, weights),
                tile_products.can_stay,
                tile_products.source_of,
                tile_products.pack_values,
                tile_products.multiply_keys,
                tile_products.multiply_values,
                tile_products.power,
                tile_products.store_weights,
            )
            release()


@kernel
def _attend_pairs(
    q: Any,
    key_cache: Any,
    value_cache: Any,
    flat_keys: Any,
    flat_values: Any,
    key_scales: Any,
    value_scales: Any,
    block_tables: Any,
    rows: Any,
    groups: Any,
    lows: Any,
    highs: Any,
    tile_tokens: Any,
    num_workers: Any,
    padded_dim: Any,
    num_blocks: Any,
    scale: Any,
    softcap: Any,
    peaks: Any,
    masses: Any,
    totals: Any,
    out: Any,
    shapes: Any,
) -> None:
    """Attend level by level, in pairs of bfloat16."""
    tiles, levels = cut_tiles(groups, tile_tokens)
    num_kv_heads = key_cache.shape[1]
    for level in range(levels.shape[0] - 1):
        first, last = levels[level] * num_kv_heads, levels[level + 1] * num_kv_heads
        for worker in numba.prange(num_workers):
            keys = np.zeros(PARTITION_TOKENS * padded_dim, np.uint16)
            values = np.zeros(PARTITION_TOKENS * padded_dim, np.uint16)
            packed = np.zeros(PARTITION_TOKENS * padded_dim, np.uint16)
            queries = np.zeros(num_blocks * padded_dim // 2 * BLOCK_ROWS, np.uint32)
            block_rows = np.zeros(BLOCK_ROWS * padded_dim, np.uint16)
            weights = np.zeros(PARTITION_TOKENS // 2 * BLOCK_ROWS, np.uint32)
            attend_tiles(
                first + worker,
                last,
                num_workers,
                q,
                key_cache,
                value_cache,
                flat_keys,
                flat_values,
                key_scales,
                value_scales,
                block_tables,
                rows,
                groups,
                lows,
                highs,
                tiles,
                scale,
                softcap,
                padded_dim,
                peaks,
                masses,
                totals,
                out,
                (keys, values, packed, queries, block_rows, weights),
                pair_products.can_stay,
                pair_products.source_of,
                pair_products.pack_values,
                pair_products.multiply_keys,
                pair_products.multiply_values,
                pair_products.power,
                pair_products.store_weights,
            )


@kernel
def _attend_floats(
    q: Any,
    key_cache: Any,
    value_cache: Any,
    flat_keys: Any,
    flat_values: Any,
    key_scales: Any,
    value_scales: Any,
    block_tables: Any,
    rows: Any,
    groups: Any,
    lows: Any,
    highs: Any,
    tile_tokens: Any,
    num_workers: Any,
    padded_dim: Any,
    num_blocks: Any,
    scale: Any,
    softcap: Any,
    peaks: Any,
    masses: Any,
    totals: Any,
    out: Any,
    shapes: Any,
) -> None:
    """Attend level by level, in float32."""
    tiles, levels = cut_tiles(groups, tile_tokens)
    num_kv_heads = key_cache.shape[1]
    for level in range(levels.shape[0] - 1):
        first, last = levels[level] * num_kv_heads, levels[level + 1] * num_kv_heads
        for worker in numba.prange(num_workers):
            keys = np.zeros(PARTITION_TOKENS * padded_dim, np.float32)
            values = np.zeros(PARTITION_TOKENS * padded_dim, np.float32)
            queries = np.zeros(num_blocks * padded_dim * BLOCK_ROWS, np.float32)
            block_rows = np.zeros(BLOCK_ROWS * padded_dim, np.float32)
            weights = np.zeros(PARTITION_TOKENS * BLOCK_ROWS, np.float32)
            attend_tiles(
                first + worker,
                last,
                num_workers,
                q,
                key_cache,
                value_cache,
                flat_keys,
                flat_values,
                key_scales,
                value_scales,
                block_tables,
                rows,
                groups,
                lows,
                highs,
                tiles,
                scale,
                softcap,
                padded_dim,
                peaks,
                masses,
                totals,
                out,
                (keys, values, values, queries, block_rows, weights),
                float_products.can_stay,
                float_products.source_of,
                float_products.pack_values,
                float_products.multiply_keys,
                float_products.multiply_values,
                float_products.power,
                float_products.store_weights,
            )


_ATTEND = {KernelSet.AMX: _attend_tiles, KernelSet.AVX512_BF16: _attend_pairs}
