"""bfloat16 for Numba, which does not know it: the upper half of a float32, seen as uint16."""

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.jit import part


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return the memory of a contiguous CPU tensor as an array; bfloat16 appears as uint16."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    return tensor.numpy()


def to_float32(element: Any) -> Any:
    """Inside kernels: read an array element, float32 or the bits of a bfloat16, as float32."""
    raise NotImplementedError("only compiled code calls this")


def from_float32(value: Any, like: Any) -> Any:
    """Inside kernels: round a float32 to what array `like` holds (to nearest, ties to even)."""
    raise NotImplementedError("only compiled code calls this")


@overload(to_float32, strict=False)
def _overload_to_float32(element: Any) -> Any:
    if element == types.uint16:
        return lambda element: np.uint32(np.uint32(element) << np.uint32(16)).view(np.float32)
    return lambda element: np.float32(element)


@overload(from_float32, strict=False)
def _overload_from_float32(value: Any, like: Any) -> Any:
    if like.dtype == types.uint16:
        return lambda value, like: _round_to_bfloat16(value)
    return lambda value, like: value


@part()
def _round_to_bfloat16(value: Any) -> Any:
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd) >> np.uint32(16)
    # Rounding could carry a NaN's digits into its sign; keep it a NaN.
    return np.uint16(0x7FC0) if value != value else np.uint16(rounded)
