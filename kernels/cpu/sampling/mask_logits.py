"""What a grammar forbids, taken out of the logits. One task is one row."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32
from pagedrun.kernels.cpu.jit import kernel, part, spread

_WORD = 32  # tokens


def mask_logits(logits: Tensor, rows: Tensor, bitmask: Tensor) -> Tensor:
    """Return logits in which what a bitmask does not allow is -inf; see the reference."""
    masked = torch.empty_like(logits, memory_format=torch.contiguous_format)
    place = torch.full((len(logits),), -1, dtype=torch.int64)
    place[rows] = torch.arange(len(rows))
    spread(logits.numel())
    _mask_logits(
        as_array(logits.contiguous()),
        as_array(place),
        as_array(bitmask.contiguous()),
        as_array(masked),
    )
    return masked


@kernel
def _mask_logits(logits: Any, place: Any, bitmask: Any, masked: Any) -> None:
    for r in numba.prange(logits.shape[0]):
        if place[r] < 0:
            masked[r] = logits[r]
        else:
            _mask_row(logits[r], bitmask[place[r]], masked[r])


@part()
def _mask_row(logits: Any, words: Any, masked: Any) -> None:
    forbidden = from_float32(np.float32(-np.inf), masked)
    for w in range(words.shape[0]):
        start, end = w * _WORD, min((w + 1) * _WORD, logits.shape[0])
        _mask_word(logits[start:end], words[w], forbidden, masked[start:end])


@part()
def _mask_word(logits: Any, word: Any, forbidden: Any, masked: Any) -> None:
    if word == 0:
        masked[:] = forbidden
        return
    for i in range(logits.shape[0]):
        masked[i] = logits[i] if (word >> i) & 1 else forbidden
