"""Types of NumPy arrays by element type."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]


def element_types(annotations: Mapping[str, Any]) -> dict[str, type[np.generic]]:
    """Return the element types of annotated arrays, by name."""
    # NDArray is ndarray[shape, dtype[element]]; from NumPy 2.5 on an alias with the element alone.
    last = {name: get_args(kind)[-1] for name, kind in annotations.items()}
    return {name: (get_args(kind) or (kind,))[0] for name, kind in last.items()}
