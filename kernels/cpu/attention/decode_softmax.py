"""One row of scores to softmax weights, the part of attention between the two products."""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.exp2 import exp2
from pagedrun.kernels.cpu.jit import REORDERED, part
from pagedrun.kernels.cpu.maximum import largest


@part(fastmath=REORDERED)
def weigh(scores: Any, scale: Any) -> Any:
    """Turn the scores of one row into weights relative to the largest, in place.

    scores: [num_keys] float32, at least one. scale: float32 above 0, log2(e) included. Returns
    (peak, mass): the largest scaled score, a power of two, and the sum of the weights
    `2^(score * scale - peak)`. A NaN score gives a NaN sum.
    """
    peak = largest(scores) * scale
    mass = np.float32(0.0)
    for i in range(scores.shape[0]):
        weight = exp2(scores[i] * scale - peak)
        scores[i] = weight
        mass += weight
    return peak, mass


@part()
def bend(scores: Any, scale: Any, softcap: Any) -> None:
    """Turn scores [num_keys] float32 into `softcap * tanh(score * scale / softcap)`, in place."""
    factor = scale / softcap
    for i in range(scores.shape[0]):
        scores[i] = softcap * np.tanh(scores[i] * factor)
