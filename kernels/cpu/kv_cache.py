"""KV cache: rotary embedding and storing of tokens, quantization of rows, copies of blocks.

A row is one head of one token. A cache that is not quantized is written in place; a row of a
quantized cache is computed in float32 first, since its scale depends on the whole row. Quantization
has the bits of `pagedrun.kernels.reference.kv_cache`.
"""

from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer, KVScales
from pagedrun.kernels.cpu.bfloat16 import (
    as_array,
    as_operand,
    from_float32,
    is_quantized,
    to_float32,
)
from pagedrun.kernels.cpu.jit import EXACT, choose_threads, inlined, kernel
from pagedrun.kernels.cpu.norms import inverse_rms
from pagedrun.kernels.cpu.simd.lanes import NUM_LANES, fused, load, splat
from pagedrun.kernels.cpu.simd.words import read_lanes, write_lanes


def rotary_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    layer: KVLayer,
    norms: HeadNorms | None,
) -> Tensor:
    """Normalize and rotate queries and keys, write keys and values; see the reference."""
    assert layer.keys.is_contiguous(), "written in place"
    assert layer.values.is_contiguous(), "written in place"
    head_dim = layer.head_dim
    query = torch.empty((len(qkv), layer.num_query_heads(qkv), head_dim), dtype=qkv.dtype)
    no_norm = qkv.new_empty(0)
    heads = as_array(torch.unflatten(qkv.contiguous(), 1, (-1, head_dim)))
    places = as_array(positions), as_array(slots)
    caches = as_array(layer.keys), as_array(layer.values)
    weights = (
        as_array(no_norm if norms is None else norms.query),
        as_array(no_norm if norms is None else norms.key),
        np.float32(0.0 if norms is None else norms.eps),
    )
    after = norms is not None and norms.after_rotation
    choose_threads(qkv.numel())
    if layer.scales is None and not after and head_dim == cos_sin[0].numel() and _in_lanes(cos_sin):
        _store_lanes(heads, as_array(cos_sin), *places, *caches, *weights, as_array(query))
        return query
    _rotary_store(
        heads,
        as_array(cos_sin),
        *places,
        *caches,
        *scale_arrays(layer.scales),
        *weights,
        after,
        as_array(query),
    )
    return query


def _in_lanes(cos_sin: Tensor) -> bool:
    """Return True if both halves of a head are whole Lanes."""
    return cos_sin.shape[2] % NUM_LANES == 0 and cos_sin.is_contiguous()


@kernel
def _store_lanes(
    heads: Any,
    cos_sin: Any,
    positions: Any,
    slots: Any,
    key_cache: Any,
    value_cache: Any,
    q_norm: Any,
    k_norm: Any,
    eps: Any,
    query: Any,
) -> None:
    """Rotate whole Lanes to a cache without scales.

    Places are flat indices: a view of a head would count references to its array, for which the
    threads wait for each other.
    """
    num_heads, num_kv_heads, block_size = query.shape[1], key_cache.shape[1], key_cache.shape[2]
    num_all, dim, half = heads.shape[1], heads.shape[2], cos_sin.shape[2]
    for token in numba.prange(heads.shape[0]):
        angles, source = positions[token] * dim, token * num_all * dim
        for head in range(num_heads):
            place = source + head * dim
            factor = _factor(heads, token, head, q_norm, eps)
            target = (token * num_heads + head) * dim
            _rotate_lanes(heads, place, cos_sin, angles, half, q_norm, factor, query, target)
        slot = slots[token]
        if slot >= 0:
            block, offset = slot // block_size, slot % block_size
            for head in range(num_kv_heads):
                place = source + (num_heads + head) * dim
                factor = _factor(heads, token, num_heads + head, k_norm, eps)
                target = ((block * num_kv_heads + head) * block_size + offset) * dim
                _rotate_lanes(
                    heads, place, cos_sin, angles, half, k_norm, factor, key_cache, target
                )
                place += num_kv_heads * dim
                for i in range(0, dim, NUM_LANES):
                    write_lanes(value_cache, target + i, read_lanes(heads, place + i))


@inlined()
def _factor(heads: Any, token: Any, head: Any, norm: Any, eps: Any) -> Any:
    """Return the factor of a head's norm, 1 without one."""
    if norm.shape[0] == 0:
        return np.float32(1.0)
    return inverse_rms(heads[token, head], eps)


@kernel
def _rotary_store(
    heads: Any,
    cos_sin: Any,
    positions: Any,
    slots: Any,
    key_cache: Any,
    value_cache: Any,
    key_scales: Any,
    value_scales: Any,
    q_norm: Any,
    k_norm: Any,
    eps: Any,
    after: Any,
    query: Any,
) -> None:
    num_heads, num_kv_heads, block_size = query.shape[1], key_cache.shape[1], key_cache.shape[2]
    for token in numba.prange(heads.shape[0]):
        rotation = cos_sin[positions[token]]
        for head in range(num_heads):
            _rotate(heads[token, head], rotation, q_norm, eps, after, query[token, head])
        slot = slots[token]
        if slot >= 0:
            block, offset = slot // block_size, slot % block_size
            for head in range(num_kv_heads):
                place = (block, head, offset)
                key = cache_row(key_cache, place)
                _rotate(heads[token, num_heads + head], rotation, k_norm, eps, after, key)
                store_row(key, key_cache, key_scales, place)
                value = cache_row(value_cache, place)
                source = heads[token, num_heads + num_kv_heads + head]
                for d in range(value.shape[0]):
                    value[d] = as_operand(source[d], value)
                store_row(value, value_cache, value_scales, place)


@inlined()
def _rotate(head: Any, rotation: Any, norm: Any, eps: Any, after: Any, out: Any) -> None:
    """Write one rotated head, normalized before (or `after`) if `norm` is not empty.

    rotation: [2, half].
    """
    half = rotation.shape[1]
    if half % NUM_LANES == 0 and head.shape[0] == 2 * half and not after:
        factor = np.float32(1.0)
        if norm.shape[0] > 0:
            factor = inverse_rms(head, eps)
        _rotate_lanes(head, 0, rotation, 0, half, norm, factor, out, 0)
        return
    wide = np.empty(head.shape[0], np.float32)
    for i in range(head.shape[0]):
        wide[i] = to_float32(head[i])
    if norm.shape[0] > 0:
        factor = inverse_rms(head, eps)
        for i in range(head.shape[0]):
            wide[i] *= factor if after else factor * to_float32(norm[i])
    if after:
        _rotate_pairs(wide[:half], wide[half : 2 * half], rotation, wide[:half], wide[half:])
        for i in range(head.shape[0]):
            out[i] = from_float32(wide[i] * to_float32(norm[i]), out)
        return
    _rotate_pairs(wide[:half], wide[half : 2 * half], rotation, out[:half], out[half : 2 * half])
    for i in range(2 * half, head.shape[0]):
        out[i] = from_float32(wide[i], out)


@inlined(fastmath=EXACT)
def _rotate_lanes(
    heads: Any,
    source: Any,
    cos_sin: Any,
    angles: Any,
    half: Any,
    norm: Any,
    factor: Any,
    out: Any,
    target: Any,
) -> None:
    """Rotate a head whose halves are whole Lanes; LLVM's own code took four times as long.

    source, angles, target: flat indices in heads, cos_sin and out.
    """
    scale = splat(factor)
    for i in range(0, half, NUM_LANES):
        first, second = read_lanes(heads, source + i), read_lanes(heads, source + half + i)
        if norm.shape[0] > 0:
            first = first * (scale * read_lanes(norm, i))
            second = second * (scale * read_lanes(norm, half + i))
        cos, sin = load(cos_sin, angles + i), load(cos_sin, angles + half + i)
        write_lanes(out, target + i, fused(first, cos, splat(np.float32(0.0)) - second * sin))
        write_lanes(out, target + half + i, fused(second, cos, first * sin))


@inlined()
def _rotate_pairs(first: Any, second: Any, rotation: Any, out_first: Any, out_second: Any) -> None:
    for i in range(first.shape[0]):
        cos, sin = rotation[0, i], rotation[1, i]
        rotated_first = first[i] * cos - second[i] * sin
        rotated_second = second[i] * cos + first[i] * sin
        out_first[i] = from_float32(rotated_first, out_first)
        out_second[i] = from_float32(rotated_second, out_second)


def cache_row(cache: Any, place: Any) -> Any:
    """Inside kernels: return memory [head_dim] for the row at `place` = (block, head, offset)."""
    raise NotImplementedError("only compiled code calls this")


def store_row(line: Any, cache: Any, scales: Any, place: Any) -> None:
    """Inside kernels: store a row, quantized with its scale where the cache has codes."""
    raise NotImplementedError("only compiled code calls this")


@overload(cache_row, strict=False)
def _overload_cache_row(cache: Any, place: Any) -> Any:
    if is_quantized(cache):
        return lambda cache, place: np.empty(cache.shape[3], np.float32)
    return lambda cache, place: cache[place]


@overload(store_row, strict=False)
def _overload_store_row(line: Any, cache: Any, scales: Any, place: Any) -> Any:
    if not is_quantized(cache):
        return lambda line, cache, scales, place: None

    def keep(line: Any, cache: Any, scales: Any, place: Any) -> None:
        scales[place] = quantize(line, cache[place])

    return keep


_SIGN_OFF = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)  # from here on: infinity and NaN
_SMALLEST_NORMAL = np.float32(1.1754943508222875e-38)
_ROUND = np.float32(12_582_912.0)  # 1.5 * 2^23: float32 has no fractions there


@inlined(fastmath=EXACT)
def quantize(vector: Any, codes: Any) -> Any:
    """Write the codes of a float32 vector to `codes` of the same length; return its scale.

    codes: int8, int16, or uint8 for the bits of float8.
    """
    bits = np.int32(0)  # of the largest magnitude; ordered like the numbers, NaN last
    for d in range(vector.shape[0]):
        bits = max(bits, np.int32(np.float32(vector[d]).view(np.int32) & _SIGN_OFF))
    if bits >= _INFINITY:
        for d in range(vector.shape[0]):
            codes[d] = 0
        return np.float32(np.nan)
    if bits == 0:
        scale = np.float32(1.0)
    else:
        largest = np.int32(bits).view(np.float32)
        scale = max(largest / _largest_code(codes), _SMALLEST_NORMAL)
    for d in range(vector.shape[0]):
        codes[d] = _code(vector[d] / scale, codes)
    return scale


def _largest_code(codes: Any) -> Any:
    """Inside kernels: return the largest value of a code of this array."""
    raise NotImplementedError("only compiled code calls this")


def _code(number: Any, codes: Any) -> Any:
    """Inside kernels: return the code nearest to a float32 within range; ties to even."""
    raise NotImplementedError("only compiled code calls this")


@overload(_largest_code, strict=False)
def _overload_largest_code(codes: Any) -> Any:
    if codes.dtype == types.int8:
        return lambda codes: np.float32(127.0)
    if codes.dtype == types.int16:
        return lambda codes: np.float32(32767.0)
    return lambda codes: np.float32(448.0)


@overload(_code, strict=False)
def _overload_code(number: Any, codes: Any) -> Any:
    if codes.dtype == types.int8:
        return lambda number, codes: np.int8(_nearest_integer(number) & np.int32(0xFF))
    if codes.dtype == types.int16:
        return lambda number, codes: np.int16(_nearest_integer(number) & np.int32(0xFFFF))
    return lambda number, codes: _float8_of(number)


@inlined(fastmath=EXACT)
def _nearest_integer(number: Any) -> Any:
    """Return bits with the integer in the lowest 16: one addition, on any processor."""
    return np.float32(number + _ROUND).view(np.int32)


@inlined(fastmath=EXACT)
def _float8_of(number: Any) -> Any:
    # Adding 1.5 * 2^(e + 20), for a number from 2^e up, leaves three bits behind its first one.
    # Below 2^-6 numbers of this format are evenly spaced.
    bits = np.float32(number).view(np.int32)
    exponent = max(np.int32(np.int32(bits >> np.int32(23)) & np.int32(0xFF)), np.int32(127 - 6))
    moved = np.int32(np.int32(exponent + np.int32(20)) << np.int32(23))
    round_off = np.int32(moved | np.int32(0x400000)).view(np.float32)
    nearest = np.float32(abs(np.float32(np.float32(number + round_off) - round_off)))
    normal = np.int32(nearest.view(np.int32) >> np.int32(20)) - np.int32((127 - 7) << 3)
    small = np.int32(nearest * np.float32(512.0))
    code = small if nearest < np.float32(0.015625) else normal
    sign = np.int32(np.int32(bits >> np.int32(24)) & np.int32(0x80))
    return np.uint8(np.int32(code) | sign)


def scale_arrays(scales: KVScales | None) -> tuple[Any, Any]:
    """Return the scales of keys and values, without blocks for None."""
    if scales is None:
        nothing = np.empty((0, 0, 0), np.float32)
        return nothing, nothing
    return as_array(scales.keys), as_array(scales.values)


def swap_blocks(src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` of one KV cache to `dst_ids` of another; see the reference."""
    assert src_cache.is_contiguous(), "a copy would cost too much"
    assert dst_cache.is_contiguous(), "written in place"
    source, destination = _by_block(src_cache), _by_block(dst_cache)
    choose_threads(len(src_ids) * source.shape[0] * source.shape[2])
    _copy(source, destination, as_array(src_ids), as_array(dst_ids))


def _by_block(cache: Tensor) -> NDArray[Any]:
    num_layers, two, num_blocks = cache.shape[:3]
    return as_array(cache.view(num_layers * two, num_blocks, -1))


@kernel
def _copy(source: Any, destination: Any, src_ids: Any, dst_ids: Any) -> None:
    num_ids = src_ids.shape[0]
    for task in numba.prange(source.shape[0] * num_ids):
        plane, index = task // num_ids, task % num_ids
        block, target = source[plane, src_ids[index]], destination[plane, dst_ids[index]]
        for i in range(target.shape[0]):
            target[i] = block[i]


def copy_blocks(kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` to `dst_ids` in every layer; see the reference."""
    swap_blocks(kv_cache, kv_cache, src_ids, dst_ids)
