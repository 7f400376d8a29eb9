"""Queries against one tile of keys and values: the step that all attention over the KV memory is
made of."""

from typing import Any

import triton
import triton.language as tl

from pagedrun.kernels.gpu.attention.kv_tile import load_scales, load_tile, token_offsets
from pagedrun.kernels.gpu.attention.softmax_state import bend_scores, weigh_scores
from pagedrun.kernels.gpu.matrix_product import multiply


@triton.jit
def attend_tile(
    query,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    table,
    start,
    low,
    high,
    kv_head,
    scale,
    softcap,
    key_stride,
    value_stride,
    scale_stride,
    peak,
    mass,
    total,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    EVICT: tl.constexpr,
) -> Any:
    """Return the state with the keys start .. start + TILE - 1, of which low .. high - 1 count.

    query: [num_rows, WIDTH], the state for as many rows. Without MASKED all the keys count.
    """
    positions = start + tl.arange(0, TILE)
    visible = (positions >= low) & (positions < high)
    offsets = token_offsets(
        table, start, kv_head, visible, key_stride, TILE, BLOCK_SIZE, HEAD_DIM, MASKED
    )
    keys = load_tile(key_cache, offsets, visible, query, HEAD_DIM, WIDTH, MASKED, EVICT)
    scores = tl.zeros((query.shape[0], TILE), tl.float32)
    scores = multiply(query, tl.trans(keys), scores)
    if key_scales is not None:
        offsets = token_offsets(
            table, start, kv_head, visible, scale_stride, TILE, BLOCK_SIZE, 1, MASKED
        )
        scores *= load_scales(key_scales, offsets, visible, MASKED)[None, :]
    if HAS_SOFTCAP:
        scores = bend_scores(scores, scale, softcap)
    if MASKED:
        scores = tl.where(visible[None, :], scores, float("-inf"))
    peak, weights, factor = weigh_scores(scores, peak, 1.0 if HAS_SOFTCAP else scale)
    mass = tl.fma(mass, factor, tl.sum(weights, axis=1))
    total *= factor[:, None]
    offsets = token_offsets(
        table, start, kv_head, visible, value_stride, TILE, BLOCK_SIZE, HEAD_DIM, MASKED
    )
    values = load_tile(value_cache, offsets, visible, query, HEAD_DIM, WIDTH, MASKED, EVICT)
    if value_scales is not None:
        offsets = token_offsets(
            table, start, kv_head, visible, scale_stride, TILE, BLOCK_SIZE, 1, MASKED
        )
        weights *= load_scales(value_scales, offsets, visible, MASKED)[None, :]
    total = multiply(weights.to(query.dtype), values, total)
    return peak, mass, total
