"""The cap of Gemma's logits. One task is one row."""

from typing import Any

import numba
import numpy as np
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread

_ONE, _TWO = np.float32(1.0), np.float32(2.0)


def cap_logits(logits: Tensor, cap: float) -> None:
    """Bend logits into -cap .. cap, in place; see the reference."""
    assert logits.is_contiguous(), "updated in place"
    spread(logits.numel())
    _cap_logits(as_array(logits), np.float32(cap), np.float32(2.0 / cap) * LOG2_E)


@kernel
def _cap_logits(logits: Any, cap: Any, factor: Any) -> None:
    for row in numba.prange(logits.shape[0]):
        _cap_row(logits[row], cap, factor)


@part()
def _cap_row(logits: Any, cap: Any, factor: Any) -> None:
    """tanh x = 1 - 2 / (e^2x + 1)."""
    for i in range(logits.shape[0]):
        power = exp2(to_float32(logits[i]) * factor)
        logits[i] = from_float32(cap * (_ONE - _TWO / (power + _ONE)), logits)
