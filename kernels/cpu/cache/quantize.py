"""Codes of a quantised KV memory, as it is written: int8 and float8_e4m3fn; and int16.

The rule is that of `pagedrun.kernels.reference.cache.quantize`, to the bit.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from pagedrun.kernels.cpu.jit import EXACT, part

_SIGN_OFF = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)  # from here on: infinity and NaN
_SMALLEST_NORMAL = np.float32(1.1754943508222875e-38)
_ROUND = np.float32(12_582_912.0)  # 1.5 * 2^23: float32 has no fractions there


@part(fastmath=EXACT)
def quantize(vector: Any, codes: Any) -> Any:
    """Write the codes of a float32 vector to `codes` of the same length; return its scale.

    codes: int8, int16, or uint8 for the bits of float8.
    """
    bits = np.int32(0)  # of the largest magnitude: integers in the order of the numbers, NaN last
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
    """Inside kernels: the largest number that a code of this array can be."""
    raise NotImplementedError("only compiled code calls this")


def _code(number: Any, codes: Any) -> Any:
    """Inside kernels: the code nearest to a float32 no larger than the largest; halves to even."""
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


@part(fastmath=EXACT)
def _nearest_integer(number: Any) -> Any:
    """Return bits of which the lowest 16 are the integer: an addition, on any processor."""
    return np.float32(number + _ROUND).view(np.int32)


@part(fastmath=EXACT)
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
