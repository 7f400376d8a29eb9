"""What happens to queries, keys and values between projection and attention, in one read."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.attention.head_norms import HeadNorms
from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.gpu.quantize import code_bits, encode, magnitude, scale_of

# A program takes as many heads of one token as make this many elements: four loads of 16 bytes for
# each thread. Small enough that the tokens of a decode step are programs for every processor.
TILE_ELEMENTS = 2048
NUM_WARPS = 4


def rotary_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    layer: KVLayer,
    norms: HeadNorms | None,
) -> Tensor:
    """Normalise and rotate queries and keys, write keys and values; see the reference.

    A program takes some query heads of a token, or some key heads and their value heads, so every
    element of `qkv` is read once.
    """
    keys, values, scales = layer
    assert keys.is_contiguous() and values.is_contiguous(), "written in place"
    assert (scales is None) == (keys.dtype == qkv.dtype)
    assert qkv.stride(1) == 1 and cos_sin.is_contiguous()
    num_tokens, head_dim = len(qkv), layer.head_dim
    num_heads, num_kv_heads = layer.num_query_heads(qkv), layer.num_kv_heads
    query = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if not num_tokens:
        return query
    half = cos_sin.shape[2]
    tile_heads = TILE_ELEMENTS // triton.next_power_of_2(head_dim)
    query_tile = min(tile_heads, triton.next_power_of_2(num_heads))
    # Key and value together make one tile.
    key_tile = max(1, min(tile_heads // 2, triton.next_power_of_2(num_kv_heads)))
    num_query_tiles = triton.cdiv(num_heads, query_tile)
    _rotary_store[(num_tokens, num_query_tiles + triton.cdiv(num_kv_heads, key_tile))](
        qkv,
        cos_sin,
        positions,
        slots,
        code_bits(keys),
        code_bits(values),
        None if scales is None else scales.keys,
        None if scales is None else scales.values,
        None if norms is None else norms.query,
        None if norms is None else norms.key,
        query,
        qkv.stride(0),
        0.0 if norms is None else norms.eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        AFTER=norms is not None and norms.after_rotation,
        BLOCK_SIZE=layer.block_size,
        QUERY_TILE=query_tile,
        KEY_TILE=key_tile,
        NUM_QUERY_TILES=num_query_tiles,
        TILE_HALF=triton.next_power_of_2(half),
        TILE_REST=triton.next_power_of_2(max(1, head_dim - 2 * half)),
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )
    return query


@triton.jit
def _rotary_store(
    qkv,
    cos_sin,
    positions,
    slots,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    q_norm,
    k_norm,
    query,
    qkv_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    AFTER: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    NUM_QUERY_TILES: tl.constexpr,
    TILE_HALF: tl.constexpr,
    TILE_REST: tl.constexpr,
):
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = qkv + token * qkv_stride
    rotation = cos_sin + tl.load(positions + token) * (2 * HALF)
    if tile < NUM_QUERY_TILES:
        heads = tile * QUERY_TILE + tl.arange(0, QUERY_TILE)
        pieces = _load(row, heads, NUM_HEADS, HEAD_DIM, HALF, TILE_HALF, TILE_REST)
        first, second, rest = _rotate(
            pieces[0], pieces[1], pieces[2], rotation, q_norm, eps, HEAD_DIM, HALF, AFTER
        )
        out = query + token * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM
        _store(out, first, second, rest, heads < NUM_HEADS, HEAD_DIM, HALF)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            heads = (tile - NUM_QUERY_TILES) * KEY_TILE + tl.arange(0, KEY_TILE)
            # Where each head's token lies, counted in head vectors: block, head, offset.
            block = slot // BLOCK_SIZE
            place = (block * NUM_KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE
            keys, values = row + NUM_HEADS * HEAD_DIM, row + (NUM_HEADS + NUM_KV_HEADS) * HEAD_DIM
            pieces = _load(keys, heads, NUM_KV_HEADS, HEAD_DIM, HALF, TILE_HALF, TILE_REST)
            first, second, rest = _rotate(
                pieces[0], pieces[1], pieces[2], rotation, k_norm, eps, HEAD_DIM, HALF, AFTER
            )
            inside = heads < NUM_KV_HEADS
            _keep(key_cache, key_scales, place, first, second, rest, inside, HEAD_DIM, HALF)
            pieces = _load(values, heads, NUM_KV_HEADS, HEAD_DIM, HALF, TILE_HALF, TILE_REST)
            _keep(
                value_cache,
                value_scales,
                place,
                pieces[0],
                pieces[1],
                pieces[2],
                inside,
                HEAD_DIM,
                HALF,
            )


@triton.jit
def _load(
    row,
    heads,
    num_heads: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    TILE_HALF: tl.constexpr,
    TILE_REST: tl.constexpr,
) -> Any:
    """Return heads in three pieces: the two that the rotation pairs, and what passes through.

    Elements beyond a piece, or of heads beyond the last, are zeros.
    """
    i, j = tl.arange(0, TILE_HALF)[None, :], tl.arange(0, TILE_REST)[None, :]
    start, inside = row + heads[:, None] * HEAD_DIM, heads[:, None] < num_heads
    first = tl.load(start + i, mask=inside & (i < HALF), other=0.0)
    second = tl.load(start + HALF + i, mask=inside & (i < HALF), other=0.0)
    rest = tl.load(start + 2 * HALF + j, mask=inside & (j < HEAD_DIM - 2 * HALF), other=0.0)
    return first, second, rest


@triton.jit
def _rotate(
    first,
    second,
    rest,
    rotation,
    norm,
    eps,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    AFTER: tl.constexpr,
) -> Any:
    """Return the pieces of heads in float32, rotated; normalised before, or AFTER, by a `norm`."""
    i = tl.arange(0, first.shape[1])
    first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    if norm is not None:
        squares = tl.sum(first * first + second * second, axis=1) + tl.sum(rest * rest, axis=1)
        factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first, second, rest = first * factor, second * factor, rest * factor
        if not AFTER:
            first, second, rest = _weigh(first, second, rest, norm, HEAD_DIM, HALF)
    cos = tl.load(rotation + i, mask=i < HALF, other=0.0)[None, :]
    sin = tl.load(rotation + HALF + i, mask=i < HALF, other=0.0)[None, :]
    first, second = first * cos - second * sin, second * cos + first * sin
    if AFTER:
        first, second, rest = _weigh(first, second, rest, norm, HEAD_DIM, HALF)
    return first, second, rest


@triton.jit
def _weigh(first, second, rest, norm, HEAD_DIM: tl.constexpr, HALF: tl.constexpr) -> Any:
    """Return the pieces of heads times the weights of a norm."""
    i, j = tl.arange(0, first.shape[1]), tl.arange(0, rest.shape[1])
    weight = tl.load(norm + i, mask=i < HALF, other=0.0).to(tl.float32)
    first = first * weight[None, :]
    weight = tl.load(norm + HALF + i, mask=i < HALF, other=0.0).to(tl.float32)
    second = second * weight[None, :]
    last = j < HEAD_DIM - 2 * HALF
    weight = tl.load(norm + 2 * HALF + j, mask=last, other=0.0).to(tl.float32)
    return first, second, rest * weight[None, :]


@triton.jit
def _keep(
    cache, scales, place, first, second, rest, inside, HEAD_DIM: tl.constexpr, HALF: tl.constexpr
):
    """Write heads to their places in a cache, quantised if it has scales."""
    out = cache + place * HEAD_DIM
    if scales is not None:
        code_type: tl.constexpr = cache.dtype.element_ty
        first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
        paired = tl.max(tl.maximum(magnitude(first), magnitude(second)), axis=1)
        scale = scale_of(tl.maximum(paired, tl.max(magnitude(rest), axis=1)), code_type)
        tl.store(scales + place, scale, mask=inside)
        first = encode(first, scale[:, None], code_type)
        second = encode(second, scale[:, None], code_type)
        rest = encode(rest, scale[:, None], code_type)
    _store(out, first, second, rest, inside, HEAD_DIM, HALF)


@triton.jit
def _store(out, first, second, rest, inside, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Write the pieces of heads whose vectors start at `out`."""
    i, j = tl.arange(0, first.shape[1])[None, :], tl.arange(0, rest.shape[1])[None, :]
    start, inside = out[:, None], inside[:, None]
    dtype: tl.constexpr = out.dtype.element_ty
    tl.store(start + i, first.to(dtype), mask=inside & (i < HALF))
    tl.store(start + HALF + i, second.to(dtype), mask=inside & (i < HALF))
    tl.store(start + 2 * HALF + j, rest.to(dtype), mask=inside & (j < HEAD_DIM - 2 * HALF))
