"""Codes of a quantised KV memory, as it is written: int8 and float8_e4m3fn.

The rule is that of `pagedrun.kernels.reference.cache.quantize`, to the bit. float8_e4m3fn is
handled as its bits, uint8: so it works on chips without that type too (sm_80), and the interpreter,
whose own conversions do not round, computes what a GPU does.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)
_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: float32 has no fractions there


def code_bits(cache: Tensor) -> Tensor:
    """Return a KV memory as kernels write it: float8_e4m3fn as its bits, the rest as it is."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache


@triton.jit
def magnitude(x) -> Any:
    """Return |x|, with infinity for NaN: a maximum over it loses neither."""
    absolute = tl.abs(x)
    return tl.where(absolute < float("inf"), absolute, float("inf"))


@triton.jit
def scale_of(largest, code_type: tl.constexpr) -> Any:
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
    """Return the bits of the float8_e4m3fn nearest to a float32, |x| below 464; halves to even."""
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
