"""Operations on the KV cache: rotation and storing, quantization, copies and swaps of blocks.

`rotary_store` does all between projection and attention in one read of queries, keys and values.

Quantization follows `pagedrun.kernels.reference.kv_cache`, to the bit. float8_e4m3fn is
handled as its bits, uint8: so it works on chips without that type too (sm_80), and the interpreter,
whose own conversions do not round, computes what a GPU does.

Swaps: a kernel on the device reads or writes pinned host memory over the bus itself. The ids on
either side are scattered, and a block is as many pieces as there are planes (two for each layer),
so the copy engine would need one call for each piece, of some ten KiB, and a call costs more than
moving that. Gathering into a staging buffer first saves calls on the device's side only. One launch
has neither cost, needs no ids on the host, and does not wait: it goes to the current stream, and
the caller makes another stream current to swap beside the computation.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer

# A program takes as many heads of one token as make this many elements: four loads of 16 bytes for
# each thread. Small enough that the tokens of a decode step are programs for every processor.
_ROTARY_TILE_ELEMENTS = 2048
_ROTARY_WARPS = 4


def rotary_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    layer: KVLayer,
    norms: HeadNorms | None,
) -> Tensor:
    """Normalize and rotate queries and keys, write keys and values; see the reference.

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
    tile_heads = _ROTARY_TILE_ELEMENTS // triton.next_power_of_2(head_dim)
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
        num_warps=_ROTARY_WARPS,
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
            _write_cache(key_cache, key_scales, place, first, second, rest, inside, HEAD_DIM, HALF)
            pieces = _load(values, heads, NUM_KV_HEADS, HEAD_DIM, HALF, TILE_HALF, TILE_REST)
            _write_cache(
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
    """Return heads in three pieces: the two halves of the rotation, and the unrotated rest.

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
    """Return the rotated pieces of heads in float32, normalized before (or AFTER) by a `norm`."""
    i = tl.arange(0, first.shape[1])
    first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    if norm is not None:
        squares = tl.sum(first * first + second * second, axis=1) + tl.sum(rest * rest, axis=1)
        factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first, second, rest = first * factor, second * factor, rest * factor
        if not AFTER:
            first, second, rest = _normalize(first, second, rest, norm, HEAD_DIM, HALF)
    cos = tl.load(rotation + i, mask=i < HALF, other=0.0)[None, :]
    sin = tl.load(rotation + HALF + i, mask=i < HALF, other=0.0)[None, :]
    first, second = first * cos - second * sin, second * cos + first * sin
    if AFTER:
        first, second, rest = _normalize(first, second, rest, norm, HEAD_DIM, HALF)
    return first, second, rest


@triton.jit
def _normalize(first, second, rest, norm, HEAD_DIM: tl.constexpr, HALF: tl.constexpr) -> Any:
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
def _write_cache(
    cache, scales, place, first, second, rest, inside, HEAD_DIM: tl.constexpr, HALF: tl.constexpr
):
    """Write heads to a cache, quantized if it has scales."""
    out = cache + place * HEAD_DIM
    if scales is not None:
        code_type: tl.constexpr = cache.dtype.element_ty
        first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
        paired = tl.max(tl.maximum(magnitude(first), magnitude(second)), axis=1)
        scale = quantization_scale(tl.maximum(paired, tl.max(magnitude(rest), axis=1)), code_type)
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


_SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)
_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: float32 has no fractions there


def code_bits(cache: Tensor) -> Tensor:
    """Return a KV cache as stored by kernels: float8_e4m3fn as its bits."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache


@triton.jit
def magnitude(x) -> Any:
    """Return |x|, with infinity for NaN: a maximum over it loses neither."""
    absolute = tl.abs(x)
    return tl.where(absolute < float("inf"), absolute, float("inf"))


@triton.jit
def quantization_scale(largest, code_type: tl.constexpr) -> Any:
    """Return the scale of a vector whose largest `magnitude` is given; NaN if that is infinite."""
    LARGEST_CODE: tl.constexpr = 127.0 if code_type == tl.int8 else 448.0
    scale = tl.maximum(
        tl.div_rn(largest, tl.full(largest.shape, LARGEST_CODE, tl.float32)), _SMALLEST_NORMAL
    )
    scale = tl.where(largest > 0, scale, 1.0)
    return tl.where(largest < float("inf"), scale, float("nan"))


@triton.jit
def encode(x, scale, code_type: tl.constexpr) -> Any:
    """Return codes of float32 `x` for the scales of its vectors, broadcast to its shape."""
    ratio = tl.where(scale == scale, tl.div_rn(x, scale), 0.0)
    if code_type == tl.int8:
        return ((ratio + _ROUND) - _ROUND).to(tl.int8)
    else:  # noqa: RET505 - what follows a return is compiled too
        return _e4m3_of(ratio)


@triton.jit
def _e4m3_of(x) -> Any:
    """Return the bits of the float8_e4m3fn nearest to a float32, |x| below 464; ties to even."""
    # Adding 1.5 * 2^(e + 20), for x from 2^e up, leaves three bits behind the first one of x. Below
    # 2^-6 numbers of this format are evenly spaced.
    bits = x.to(tl.int32, bitcast=True)
    exponent = tl.maximum((bits >> 23) & 0xFF, 127 - 6)
    round_off = (((exponent + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)
    nearest = tl.abs((x + round_off) - round_off)
    normal = (nearest.to(tl.int32, bitcast=True) >> 20) - ((127 - 7) << 3)
    small = (nearest * 512.0).to(tl.int32)
    code = tl.where(nearest < 0.015625, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


_COPY_TILE_BYTES = 8 << 10  # moved by one program at a time: four loads of 16 bytes a thread
_COPY_WARPS = 4


def copy_blocks(kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` to `dst_ids` in every layer; see the reference.

    One launch for any number of layers and ids.
    """
    launch_copies(kv_cache, kv_cache, src_ids, dst_ids, kv_cache.device, None)


def launch_copies(
    source: Tensor,
    target: Tensor,
    src_ids: Tensor,
    dst_ids: Tensor,
    device: torch.device,
    max_programs: int | None,
) -> None:
    """Copy blocks of one KV cache to blocks of another, with at most `max_programs` programs.

    source, target: [num_layers, planes, num_blocks, ...], as of keys and values, contiguous and
    within reach of the device: on it, or in pinned host memory. src_ids, dst_ids: [num_copies]
    int64; they are sent to the device if they are elsewhere. Bytes are copied, since not
    every chip supports float8.
    """
    assert source.is_contiguous(), "a copy would cost too much"
    assert target.is_contiguous(), "written in place"
    source, target = source.view(torch.uint8), target.view(torch.uint8)
    num_planes, block_bytes = source.shape[0] * source.shape[1], source[0, 0, 0].numel()
    num_chunks = triton.cdiv(block_bytes, _COPY_TILE_BYTES)
    num_tasks = num_planes * len(src_ids) * num_chunks
    if num_tasks:
        num_programs = num_tasks if max_programs is None else min(num_tasks, max_programs)
        _copy_blocks[(num_programs,)](
            source,
            target,
            src_ids.to(device, non_blocking=True),
            dst_ids.to(device, non_blocking=True),
            num_tasks,
            len(src_ids),
            num_chunks,
            source.stride(1),
            target.stride(1),
            block_bytes,
            TILE=_COPY_TILE_BYTES,
            num_warps=_COPY_WARPS,
            enable_fp_fusion=False,
        )


@triton.jit(do_not_specialize=["num_tasks", "num_ids"])
def _copy_blocks(
    source,
    target,
    src_ids,
    dst_ids,
    num_tasks,
    num_ids,
    num_chunks,
    source_plane,
    target_plane,
    block_bytes,
    TILE: tl.constexpr,
):
    """Copy chunks; neighboring programs copy neighboring chunks of one plane."""
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        chunk = task % num_chunks
        index = task // num_chunks % num_ids
        plane = (task // num_chunks // num_ids).to(tl.int64)
        places = chunk * TILE + tl.arange(0, TILE)
        inside = places < block_bytes
        src_start = plane * source_plane + tl.load(src_ids + index) * block_bytes
        dst_start = plane * target_plane + tl.load(dst_ids + index) * block_bytes
        moved = tl.load(source + src_start + places, mask=inside)
        tl.store(target + dst_start + places, moved, mask=inside)


# The bus needs few programs to be full, and what they occupy is lost to the computation beside
# them: each has 8 KiB on its way. Not measured yet.
_SWAP_PROGRAMS = 64


def swap_blocks(src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` of one KV cache to `dst_ids` of another; see the reference.

    Returns before the copies are made; they are ordered by the current stream. A memory that is
    not on the device must be pinned.
    """
    device = src_cache.device if src_cache.device.type != "cpu" else dst_cache.device
    for cache in (src_cache, dst_cache):
        assert cache.device == device or cache.is_pinned(), "the device cannot reach this memory"
    launch_copies(src_cache, dst_cache, src_ids, dst_ids, device, _SWAP_PROGRAMS)
