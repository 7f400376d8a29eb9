"""What prefill attention does with one tile of keys; see `prefill_attention` for the whole."""

from typing import Any

import triton
import triton.language as tl

from pagedrun.kernels.gpu.attention.kv_tile import load_scales, load_tile, token_offsets
from pagedrun.kernels.gpu.attention.softmax_state import bend_scores
from pagedrun.kernels.gpu.matrix_product import multiply
from pagedrun.kernels.gpu.quantize import magnitude


@triton.jit
def attend(
    state,
    query,
    positions,
    first_tile,
    last_tile,
    caches,
    table,
    kv_head,
    context_end,
    scale,
    softcap,
    window,
    sizes: tl.constexpr,
    MASKED: tl.constexpr,
) -> Any:
    """Return the state of the rows after the key tiles from `first_tile` up to `last_tile`.

    state: largest score so far (a power of two), sum of weights, and sum of values with these
    weights, of each row. query: [num_rows, WIDTH], zeros from HEAD_DIM on. positions: [num_rows].
    caches: keys, values, scales of keys and of values (or None). context_end: the first
    token that is not to be read. sizes: block size, number of kv heads, head size, keys in a tile.
    MASKED: the rows do not all see all keys of these tiles.
    """
    BLOCK_SIZE: tl.constexpr = sizes[0]
    block_vectors: tl.constexpr = BLOCK_SIZE * sizes[1]
    HEAD_DIM: tl.constexpr = sizes[2]
    NUM_KEYS: tl.constexpr = sizes[3]
    NUM_ROWS: tl.constexpr = query.shape[0]
    WIDTH: tl.constexpr = query.shape[1]
    key_cache, value_cache, key_scales, value_scales = caches
    peak, mass, total = state
    for tile in tl.range(first_tile, last_tile):
        tokens = tile * NUM_KEYS + tl.arange(0, NUM_KEYS)
        written = tokens < context_end
        # Where the tokens' head vectors lie, counted in such.
        vectors = token_offsets(
            table, tile * NUM_KEYS, kv_head, written, block_vectors, NUM_KEYS, BLOCK_SIZE, 1, MASKED
        )
        offsets = vectors * HEAD_DIM
        keys = load_tile(key_cache, offsets, written, query, HEAD_DIM, WIDTH, MASKED, "")
        scores = multiply(query, tl.trans(keys), tl.zeros((NUM_ROWS, NUM_KEYS), tl.float32))
        if key_scales is not None:
            scores *= load_scales(key_scales, vectors, written, MASKED)[None, :]
        # An infinite key must show as NaN: minus infinity would be a weight of 0.
        scores = tl.fma(scores, 0.0, scores)
        if softcap is not None:
            scores = bend_scores(scores, scale, softcap)
        values = load_tile(value_cache, offsets, written, query, HEAD_DIM, WIDTH, MASKED, "")
        value_scale = tl.full((NUM_KEYS,), 1.0, tl.float32)
        if value_scales is not None:
            value_scale = load_scales(value_scales, vectors, written, MASKED)
        if MASKED:
            # What is not finite in a value moves to the scores, where the mask can stop it: a
            # weight of 0 would not, for 0 times NaN is NaN.
            finite = tl.max(magnitude(values.to(tl.float32)), axis=1) < float("inf")
            finite = finite & (magnitude(value_scale) < float("inf"))
            values = tl.where(finite[:, None], values, tl.zeros_like(values))
            value_scale = tl.where(finite, value_scale, 0.0)
            scores = tl.where(finite[None, :], scores, float("nan"))
            visible = tokens[None, :] <= positions[:, None]
            if window is not None:
                visible = visible & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))

        factor = scale if softcap is None else 1.0
        joint = tl.maximum(peak, tl.max(scores, axis=1) * factor)
        # A row whose window begins in a later tile has no peak yet.
        base = joint if window is None else tl.where(joint == float("-inf"), 0.0, joint)
        weights = tl.exp2(tl.fma(scores, factor, -base[:, None]))
        old = tl.exp2(peak - base)
        mass = tl.fma(mass, old, tl.sum(weights, axis=1))
        if value_scales is not None:
            weights *= value_scale[None, :]
        total = multiply(weights.to(values.dtype), values, total * old[:, None])
        peak = joint
    return peak, mass, total
