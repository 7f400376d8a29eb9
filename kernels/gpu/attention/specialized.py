"""Attention with specialized warps on sm_90: one copies tiles of keys, two groups multiply them.

The copying warp fills a ring of stages in shared memory with tiles of keys and values, by tensor
copies, as far ahead as there are stages. A group is four warps, with 64 rows of queries; it
computes the weights of a tile while the values of the tile before are multiplied, and the other
group's softmax overlaps as well. All warps process the same tiles in the same order. A stage is
ready when its bytes have arrived, and free when both groups have used it: a barrier counts either.

The operations on a row and their order are those of the kernels in Triton's own language, and so
are its bytes. Gluon has no interpreter: without a GPU these kernels can only be compiled.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pagedrun.kernels.gpu.attention.attend_tile import softcap_scores, update_softmax

TILE_KEYS = 64
NUM_GROUPS = gl.constexpr(2)
GROUP_ROWS = gl.constexpr(64)  # multiplied by one instruction of a group of four warps
TILE_ROWS = 128
# Warps of the second group and of the copies, and registers of each of their threads.
WORKER_WARPS = gl.constexpr([4, 1])
WORKER_REGISTERS = gl.constexpr([240, 24])

# Triton 3.6 has other names for them.
_copy_box = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
thread_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


def boxes(cache: Tensor) -> TensorDescriptor:
    """Return a cache as a matrix of rows of one token and kv head, read in boxes of one tile.

    cache: [num_blocks, num_kv_heads, block_size, head_dim], each block contiguous.
    """
    num_blocks, num_kv_heads, block_size, head_dim = cache.shape
    rows, rest = divmod(cache.stride(0), head_dim)
    assert rest == 0, "blocks must lie a whole number of tokens apart"
    num_rows = (num_blocks - 1) * rows + num_kv_heads * block_size
    assert num_rows < 1 << 31, "positions are counted in 32 bits"
    matrix = cache.as_strided((num_rows, head_dim), (head_dim, 1))
    layout = _box_layout(head_dim, cache.dtype)
    return TensorDescriptor.from_tensor(matrix, [TILE_KEYS, head_dim], layout)


@functools.cache
def _box_layout(head_dim: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    element = gl.bfloat16 if dtype is torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([TILE_KEYS, head_dim], element)


@gluon.jit
def new_ring(key_boxes, value_boxes, STAGES: gl.constexpr) -> Any:
    """Return a ring in shared memory: keys, values, and for each its barriers of ready and free."""
    TILE: gl.constexpr = key_boxes.block_type.shape[0]
    HEAD_DIM: gl.constexpr = key_boxes.block_type.shape[1]
    keys = gl.allocate_shared_memory(key_boxes.dtype, [STAGES, TILE, HEAD_DIM], key_boxes.layout)
    values = gl.allocate_shared_memory(
        value_boxes.dtype, [STAGES, TILE, HEAD_DIM], value_boxes.layout
    )
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    keys_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    keys_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    values_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    values_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    for stage in gl.static_range(STAGES):
        mbarrier.init(keys_ready.index(stage), count=1)
        mbarrier.init(keys_free.index(stage), count=NUM_GROUPS)
        mbarrier.init(values_ready.index(stage), count=1)
        mbarrier.init(values_free.index(stage), count=NUM_GROUPS)
    fence_async_shared()
    return keys, values, keys_ready, keys_free, values_ready, values_free


@gluon.jit
def room_for_rows(like) -> Any:
    """Return shared memory for rows of each group, [2, 64, head_dim], of the dtype of a cache."""
    HEAD_DIM: gl.constexpr = like.block_type.shape[1]
    shape: gl.constexpr = [GROUP_ROWS, HEAD_DIM]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(shape, like.dtype)
    return gl.allocate_shared_memory(like.dtype, [NUM_GROUPS, GROUP_ROWS, HEAD_DIM], layout)


@gluon.jit
def copy_tile(ring, key_boxes, value_boxes, count, key_row, value_row) -> Any:
    """Copy tile number `count` into its stage of the ring, once that is free.

    key_row, value_row: the first row of the tile in the matrices of the boxes.
    """
    keys, values, keys_ready, keys_free, values_ready, values_free = ring
    STAGES: gl.constexpr = keys.shape[0]
    stage, turn = count % STAGES, count // STAGES
    mbarrier.wait(keys_free.index(stage), (turn & 1) ^ 1)  # free from the beginning
    mbarrier.expect(keys_ready.index(stage), key_boxes.block_type.nbytes)
    _copy_box(key_boxes, [key_row, 0], keys_ready.index(stage), keys.index(stage))
    mbarrier.wait(values_free.index(stage), (turn & 1) ^ 1)
    mbarrier.expect(values_ready.index(stage), value_boxes.block_type.nbytes)
    _copy_box(value_boxes, [value_row, 0], values_ready.index(stage), values.index(stage))


@gluon.jit
def attend_tiles(
    ring, query, count, num_tiles, max_score, sum_exp, acc, scale, softcap, SPREADS: gl.constexpr
) -> Any:
    """Return the state of 64 rows with the next `num_tiles` tiles, at least one, seen whole.

    query: shared memory [64, head_dim]. count: tiles of the ring before these. max_score, sum_exp,
    acc: the state so far, in the layout of `acc`. SPREADS: an infinite score becomes NaN.
    """
    keys, values, keys_ready, keys_free, values_ready, values_free = ring
    STAGES: gl.constexpr = keys.shape[0]
    TILE: gl.constexpr = keys.shape[1]
    acc_layout: gl.constexpr = acc.type.layout
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    of_rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
    of_scores: gl.constexpr = gl.SliceLayout(1, score_layout)
    max_score = gl.convert_layout(max_score, of_scores)
    sum_exp = gl.convert_layout(sum_exp, of_scores)
    zeros = gl.full([GROUP_ROWS, TILE], 0.0, gl.float32, score_layout)

    stage, phase = count % STAGES, (count // STAGES) & 1
    mbarrier.wait(keys_ready.index(stage), phase)
    scores = warpgroup_mma(
        query, keys.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(keys_free.index(stage), count=1)
    max_score, weights, factor = _weigh(scores, max_score, scale, softcap, SPREADS)
    sum_exp = gl.fma(sum_exp, factor, gl.sum(weights, axis=1))
    acc *= gl.convert_layout(factor, of_rows)[:, None]
    held = gl.convert_layout(weights.to(values.dtype), weight_layout)
    mbarrier.wait(values_ready.index(stage), phase)
    for tile in range(count + 1, count + num_tiles):
        next_stage, next_phase = tile % STAGES, (tile // STAGES) & 1
        mbarrier.wait(keys_ready.index(next_stage), next_phase)
        scores = warpgroup_mma(
            query, keys.index(next_stage).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        adding = warpgroup_mma(held, values.index(stage), acc, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        mbarrier.arrive(keys_free.index(next_stage), count=1)
        max_score, weights, factor = _weigh(scores, max_score, scale, softcap, SPREADS)
        sum_exp = gl.fma(sum_exp, factor, gl.sum(weights, axis=1))
        # Waiting here keeps the assembler from moving the weights behind the product.
        mbarrier.wait(values_ready.index(next_stage), next_phase)
        acc, held = warpgroup_mma_wait(0, deps=(adding, held))  # `held` is read until here
        mbarrier.arrive(values_free.index(stage), count=1)
        acc *= gl.convert_layout(factor, of_rows)[:, None]
        held = gl.convert_layout(weights.to(values.dtype), weight_layout)
        stage, phase = next_stage, next_phase
    adding = warpgroup_mma(held, values.index(stage), acc, is_async=True)
    acc, held = warpgroup_mma_wait(0, deps=(adding, held))
    mbarrier.arrive(values_free.index(stage), count=1)
    return gl.convert_layout(max_score, of_rows), gl.convert_layout(sum_exp, of_rows), acc


@gluon.jit
def _weigh(scores, max_score, scale, softcap, SPREADS: gl.constexpr) -> Any:
    if SPREADS:
        scores = gl.fma(scores, 0.0, scores)
    if softcap is not None:
        return update_softmax(softcap_scores(scores, scale, softcap), max_score, 1.0)
    return update_softmax(scores, max_score, scale)
