"""bfloat16 and float8 in kernels, viewed as uint16 and uint8, since Numba supports neither.

A bfloat16 is the upper half of a float32. It holds every code of a quantized cache exactly: int8
has no more digits than it, float8_e4m3fn fewer, and its exponents go further.
"""

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.jit import inlined
from pagedrun.kernels.cpu.recording import unrecorded


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return the memory of a contiguous CPU tensor as an array.

    bfloat16 appears as uint16, float8_e4m3fn as uint8.
    """
    with unrecorded():
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.view(torch.uint16)
        if tensor.dtype is torch.float8_e4m3fn:
            tensor = tensor.view(torch.uint8)
        return tensor.numpy()


def to_float32(element: Any) -> Any:
    """Inside kernels: convert an array element, or the bits of one, to float32."""
    raise NotImplementedError("only compiled code calls this")


def from_float32(value: Any, like: Any) -> Any:
    """Inside kernels: round a float32 to the dtype of array `like` (to nearest, ties to even)."""
    raise NotImplementedError("only compiled code calls this")


def as_operand(element: Any, like: Any) -> Any:
    """Inside kernels: convert an element of a cache to the dtype of array `like`, exactly."""
    raise NotImplementedError("only compiled code calls this")


def is_quantized(array: Any) -> bool:
    """Return True if an array, given by its Numba type, has codes: int8, or bits of float8."""
    return array.dtype in (types.int8, types.uint8)


@overload(to_float32, strict=False)
def _overload_to_float32(element: Any) -> Any:
    if element == types.uint16:
        return lambda element: np.uint32(np.uint32(element) << np.uint32(16)).view(np.float32)
    if element == types.uint8:
        return lambda element: _from_float8(element)
    return lambda element: np.float32(element)


@inlined()
def _from_float8(element: Any) -> Any:
    """Return the float32 of the bits of a float8_e4m3fn: exact, NaN included.

    Exponent and fraction are shifted to their positions in float32, whose exponent bias is 127
    instead of 7: hence the factor 2^120.
    """
    bits = np.uint32(element)
    magnitude = np.uint32(bits & np.uint32(0x7F))
    sign = np.uint32(np.uint32(bits & np.uint32(0x80)) << np.uint32(24))
    moved = np.uint32(sign | np.uint32(magnitude << np.uint32(20)))
    value = moved.view(np.float32) * np.float32(2.0**120)
    return np.float32(np.nan) if magnitude == np.uint32(0x7F) else value


@overload(from_float32, strict=False)
def _overload_from_float32(value: Any, like: Any) -> Any:
    if like.dtype == types.uint16:
        return lambda value, like: _round_to_bfloat16(value)
    return lambda value, like: value


@inlined()
def _round_to_bfloat16(value: Any) -> Any:
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd) >> np.uint32(16)
    # Rounding could carry a NaN's digits into its sign; keep it a NaN.
    return np.uint16(0x7FC0) if value != value else np.uint16(rounded)


@overload(as_operand, strict=False)
def _overload_operand(element: Any, like: Any) -> Any:
    if element == like.dtype:
        return lambda element, like: element
    if like.dtype == types.uint16:
        return lambda element, like: _upper_half(to_float32(element))
    return lambda element, like: to_float32(element)


@inlined()
def _upper_half(value: Any) -> Any:
    return np.uint16(np.uint32(np.float32(value).view(np.uint32) >> np.uint32(16)))
