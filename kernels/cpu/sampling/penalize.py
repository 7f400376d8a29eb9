"""Penalties on tokens that were there before."""

from typing import Any

import numba
import numpy as np
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import EXACT, kernel, part, spread


def penalize(
    logits: Tensor,
    rows: Tensor,
    places: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    num_ids: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Lower, or raise, the logits of the tokens in a table, in place; see the reference."""
    spread(len(rows) * token_ids.shape[1])
    table = (token_ids, counts, num_ids)
    _penalize(*map(as_array, (logits, rows, places, *table, repetition, presence, frequency)))


@kernel
def _penalize(
    logits: Any,
    rows: Any,
    places: Any,
    token_ids: Any,
    counts: Any,
    num_ids: Any,
    repetition: Any,
    presence: Any,
    frequency: Any,
) -> None:
    for i in numba.prange(rows.shape[0]):
        place = places[i]
        _penalize_row(
            logits[rows[i]],
            token_ids[place, : num_ids[place]],
            counts[place],
            repetition[place],
            presence[place],
            frequency[place],
        )


@part(fastmath=EXACT)
def _penalize_row(
    logits: Any, token_ids: Any, counts: Any, repetition: Any, presence: Any, frequency: Any
) -> None:
    for i in range(token_ids.shape[0]):
        token, count = token_ids[i], np.float32(counts[i])
        value = logits[token]
        value = value / repetition if value > 0 else value * repetition
        value -= frequency * count
        value -= presence if count > 0 else np.float32(0.0)
        logits[token] = value
