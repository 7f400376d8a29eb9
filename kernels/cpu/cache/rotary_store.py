"""What happens to queries, keys and values between projection and attention, in one pass."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.attention.head_norms import HeadNorms
from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.cpu.attention.scale_arrays import scale_arrays
from pagedrun.kernels.cpu.bfloat16 import as_array, as_operand, from_float32, to_float32
from pagedrun.kernels.cpu.cache.kept_lines import keep_line, line_for
from pagedrun.kernels.cpu.jit import EXACT, kernel, part, spread
from pagedrun.kernels.cpu.rms_norm import inverse_rms
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
    """Normalise and rotate queries and keys, write keys and values; see the reference."""
    assert layer.keys.is_contiguous(), "written in place"
    assert layer.values.is_contiguous(), "written in place"
    head_dim = layer.head_dim
    query = torch.empty((len(qkv), layer.num_query_heads(qkv), head_dim), dtype=qkv.dtype)
    no_norm = qkv.new_empty(0)
    spread(qkv.numel())
    _rotary_store(
        as_array(torch.unflatten(qkv.contiguous(), 1, (-1, head_dim))),
        as_array(cos_sin),
        as_array(positions),
        as_array(slots),
        as_array(layer.keys),
        as_array(layer.values),
        *scale_arrays(layer.scales),
        as_array(no_norm if norms is None else norms.query),
        as_array(no_norm if norms is None else norms.key),
        np.float32(0.0 if norms is None else norms.eps),
        norms is not None and norms.after_rotation,
        as_array(query),
    )
    return query


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
                key = line_for(key_cache, place)
                _rotate(heads[token, num_heads + head], rotation, k_norm, eps, after, key)
                keep_line(key, key_cache, key_scales, place)
                value = line_for(value_cache, place)
                source = heads[token, num_heads + num_kv_heads + head]
                for d in range(value.shape[0]):
                    value[d] = as_operand(source[d], value)
                keep_line(value, value_cache, value_scales, place)


@part()
def _rotate(head: Any, rotation: Any, norm: Any, eps: Any, after: Any, out: Any) -> None:
    """Write one head, rotated; normalised before, or `after`, if `norm` is not empty.

    rotation: [2, half].
    """
    half = rotation.shape[1]
    if half % NUM_LANES == 0 and head.shape[0] == 2 * half and not after:
        factor = np.float32(1.0)
        if norm.shape[0] > 0:
            factor = inverse_rms(head, eps)
        _rotate_lanes(head, rotation, norm, factor, out)
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


@part(fastmath=EXACT)
def _rotate_lanes(head: Any, rotation: Any, norm: Any, factor: Any, out: Any) -> None:
    """Rotate a head whose halves are whole Lanes: left to LLVM this took four times as long."""
    half, scale = rotation.shape[1], splat(factor)
    for i in range(0, half, NUM_LANES):
        first, second = read_lanes(head, i), read_lanes(head, half + i)
        if norm.shape[0] > 0:
            first = first * (scale * read_lanes(norm, i))
            second = second * (scale * read_lanes(norm, half + i))
        cos, sin = load(rotation, i), load(rotation, half + i)
        write_lanes(out, i, fused(first, cos, splat(np.float32(0.0)) - second * sin))
        write_lanes(out, half + i, fused(second, cos, first * sin))


@part()
def _rotate_pairs(first: Any, second: Any, rotation: Any, out_first: Any, out_second: Any) -> None:
    for i in range(first.shape[0]):
        cos, sin = rotation[0, i], rotation[1, i]
        turned_first = first[i] * cos - second[i] * sin
        turned_second = second[i] * cos + first[i] * sin
        out_first[i] = from_float32(turned_first, out_first)
        out_second[i] = from_float32(turned_second, out_second)
