"""The largest of many float32 values, in vector code."""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.jit import part

_DIGITS = np.int32(0x7FFFFFFF)


@part()
def largest(values: Any) -> Any:
    """Return the largest of float32 values, of which there is at least one; for NaN see below.

    Compared as integers in the same order (negative floats with their digits flipped): LLVM makes
    vector code of an integer maximum, of a float one only under the promise that there are no NaN.
    A positive NaN counts as larger, a negative one as smaller than every number.
    """
    peak = np.int32(-0x80000000)
    for i in range(values.shape[0]):
        bits = np.float32(values[i]).view(np.int32)
        order = np.int32(bits ^ (np.int32(bits >> np.int32(31)) & _DIGITS))
        peak = max(peak, order)
    return np.int32(peak ^ (np.int32(peak >> np.int32(31)) & _DIGITS)).view(np.float32)
