"""How the KV memory is quantised: each head of each token by itself."""

import torch
from torch import Tensor

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
