"""What prefill attention does with one tile of keys; see `prefill_attention` for the whole."""

from typing import Any

import triton
import triton.language as tl

from pagedrun.kernels.gpu.quantize import decode, magnitude


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
    weights, of each row. query: [num_rows, tile_dim], zeros from HEAD_DIM on. positions: [num_rows].
    caches: keys, values, scales of keys and of values (or None). context_end: the first
    token that is not to be read. sizes: block size, number of kv heads, head size, keys in a tile.
    MASKED: the rows do not all see all keys of these tiles.
    """
    BLOCK_SIZE: tl.constexpr = sizes[0]
    HEAD_DIM: tl.constexpr = sizes[2]
    NUM_KEYS: tl.constexpr = sizes[3]
    block_vectors: tl.constexpr = sizes[1] * BLOCK_SIZE
    keys, values, key_scales, value_scales = caches
    peak, mass, total = state
    first_vector = kv_head * BLOCK_SIZE
    d = tl.arange(0, query.shape[1])[None, :]
    for tile in tl.range(first_tile, last_tile):
        offsets = tl.arange(0, NUM_KEYS)
        tokens = tile * NUM_KEYS + offsets
        written = tokens < context_end
        if BLOCK_SIZE % NUM_KEYS == 0:
            block = tl.load(table + tile * NUM_KEYS // BLOCK_SIZE).to(tl.int64)
            vectors = (
                block * block_vectors + (first_vector + tile * NUM_KEYS % BLOCK_SIZE) + offsets
            )
        else:
            ids = table + tokens // BLOCK_SIZE
            block = tl.load(ids, mask=written, other=0) if MASKED else tl.load(ids)
            vectors = block.to(tl.int64) * block_vectors + first_vector + tokens % BLOCK_SIZE
        elements = vectors[:, None] * HEAD_DIM + d
        inside = written[:, None] & (d < HEAD_DIM) if MASKED else d < HEAD_DIM

        key = _load_codes(keys + elements, inside, query, MASKED or HEAD_DIM != query.shape[1])
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if key_scales is not None:
            key_scale = _load_scales(key_scales + vectors, written, MASKED)
            scores = scores * key_scale[None, :]
        # An infinite key must show as NaN: minus infinity would be a weight of 0.
        scores = tl.fma(scores, 0.0, scores)
        if softcap is not None:
            scores = _tanh(scores * scale)
        value = _load_codes(values + elements, inside, query, MASKED or HEAD_DIM != query.shape[1])
        value_scale = tl.full([NUM_KEYS], 1.0, tl.float32)
        if value_scales is not None:
            value_scale = _load_scales(value_scales + vectors, written, MASKED)
        if MASKED:
            # What is not finite in a value moves to the scores, where the mask can stop it: a
            # weight of 0 would not, for 0 times NaN is NaN.
            largest = tl.max(magnitude(value.to(tl.float32)), axis=1)
            spoilt = tl.maximum(largest, magnitude(value_scale)) == float("inf")
            value = tl.where(spoilt[:, None], 0.0, value)
            value_scale = tl.where(spoilt, 0.0, value_scale)
            scores = tl.where(spoilt[None, :], float("nan"), scores)
            visible = tokens[None, :] <= positions[:, None]
            if window is not None:
                visible = visible & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))

        factor = scale if softcap is None else softcap
        new_peak = tl.maximum(peak, tl.max(scores, axis=1) * factor)
        # A row whose window begins in a later tile has no peak yet.
        base = new_peak if window is None else tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(tl.fma(scores, factor, -base[:, None]))
        old = tl.exp2(peak - base)
        mass = mass * old + tl.sum(weights, axis=1)
        if value_scales is not None:
            weights = weights * value_scale[None, :]
        total = tl.dot(weights.to(value.dtype), value, total * old[:, None], input_precision="ieee")
        peak = new_peak
    return peak, mass, total


@triton.jit
def _load_codes(pointers, inside, query, is_masked: tl.constexpr) -> Any:
    """Return keys or values as numbers in the dtype of the query, zeros where not `inside`."""
    codes = tl.load(pointers, mask=inside, other=0) if is_masked else tl.load(pointers)
    return codes if codes.dtype == query.dtype else decode(codes, query.dtype)


@triton.jit
def _load_scales(pointers, written, is_masked: tl.constexpr) -> Any:
    return tl.load(pointers, mask=written, other=0.0) if is_masked else tl.load(pointers)


@triton.jit
def _tanh(x) -> Any:
    """Return tanh of float32; absolute error about 1e-7, and NaN stays NaN."""
    return 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0)
