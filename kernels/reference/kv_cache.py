"""Operations on the KV cache: rotation and storing, quantization.

A quantized cache has one scale for each head of each token.
"""

import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import HeadNorms, KVLayer
from pagedrun.kernels.reference.norms import rms_norm


def rotary_store(
    qkv: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    layer: KVLayer,
    norms: HeadNorms | None,
) -> Tensor:
    """Normalize and rotate queries and keys, write keys and values to their slots.

    qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], model dtype: all query heads,
    then all key heads, then all value heads. cos_sin: [max_positions, 2, rotary_dim / 2] float32,
    cosines then sines. positions: [num_tokens] int64. slots: [num_tokens] int64, where the token's
    key and value go; -1 writes nothing (they are in the cache already). layer: written in place; it
    says how many heads of keys there are, and how large heads are. norms: what each head's query
    and key pass before the rotation or after it, if any.

    The rotation pairs element i with i + rotary_dim / 2 (the "rotate half" convention of Hugging
    Face); elements from rotary_dim on pass through. Everything is rounded once, at the end.

    A cache in int8 or float8_e4m3fn has scales: keys and values are quantized by `quantize`, which
    says how well, and their scales written to the same slots.
    Returns the queries, [num_tokens, num_heads, head_dim], model dtype.
    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """
    wide = qkv.to(torch.promote_types(qkv.dtype, torch.float32))
    heads = torch.unflatten(wide, 1, (-1, layer.head_dim))
    num_heads, num_kv_heads = layer.num_query_heads(qkv), layer.num_kv_heads
    query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], 1)
    if norms is not None and not norms.after_rotation:
        query, key = _normalize(query, key, norms)
    cos, sin = cos_sin[positions].unsqueeze(2).unbind(1)  # [num_tokens, 1, rotary_dim / 2]
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    if norms is not None and norms.after_rotation:
        query, key = _normalize(query, key, norms)

    written = slots >= 0
    block_size = layer.block_size
    place = (slots[written] // block_size, slice(None), slots[written] % block_size)
    keys, values, scales = layer
    if scales is None:
        keys[place] = key[written].to(qkv.dtype)
        values[place] = value[written].to(qkv.dtype)
    else:
        keys[place], scales.keys[place] = quantize(key[written], keys.dtype)
        values[place], scales.values[place] = quantize(value[written], values.dtype)
    return query.to(qkv.dtype)


def _normalize(query: Tensor, key: Tensor, norms: HeadNorms) -> tuple[Tensor, Tensor]:
    return (
        rms_norm(query, norms.query, norms.eps, query.dtype),
        rms_norm(key, norms.key, norms.eps, key.dtype),
    )


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = torch.split(heads, [half, half, heads.shape[-1] - 2 * half], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def quantize(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return codes in `dtype` and one scale per vector, so that `codes * scale` is about `heads`.

    heads: [..., head_dim], any float dtype. dtype: int8 or float8_e4m3fn.
    Returns codes [..., head_dim] and scales [...] float32 (float64 for float64 heads).

    The scale is the vector's largest magnitude over the largest code, 127 or 448, but never below
    the smallest normal float32, and 1 for a vector of zeros. A vector that holds a NaN or an
    infinity gets scale NaN, so that all of it reads as NaN, and codes 0.

    How far an element can be off, a rounding of the scale aside: in int8 by half a scale, which is
    1 / 254 of the largest magnitude in its vector, whatever its own. In float8_e4m3fn (3 bits of
    mantissa, exponents from -6) by 1 / 16 of its own magnitude, or, where that is below scale / 64,
    by scale / 1024. Codes round to the nearest, halves to even.
    Format: Micikevicius et al. 2022, "FP8 Formats for Deep Learning".
    """
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
    largest = wide.abs().amax(dim=-1, keepdim=True)
    is_finite = largest < torch.inf  # of all elements: a maximum keeps a NaN
    scale = torch.where(largest > 0, (largest / LARGEST[dtype]).clamp(min=SMALLEST_NORMAL), 1.0)
    codes = (wide / scale).where(is_finite, 0.0)
    if dtype is torch.int8:
        codes = codes.round().clamp(-127, 127)
    return codes.to(dtype), scale.masked_fill(~is_finite, torch.nan).squeeze(-1)
