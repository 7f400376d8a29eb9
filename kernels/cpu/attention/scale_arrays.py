"""The scales of a quantised cache as arrays, also where there are none."""

from typing import Any

import numpy as np

from pagedrun.kernels.attention.kv_scales import KVScales
from pagedrun.kernels.cpu.bfloat16 import as_array


def scale_arrays(scales: KVScales | None) -> tuple[Any, Any]:
    """Return the scales of keys and values: arrays without blocks where there are none."""
    if scales is None:
        nothing = np.empty((0, 0, 0), np.float32)
        return nothing, nothing
    return as_array(scales.keys), as_array(scales.values)
