"""What a grammar forbids, taken out of the logits. One task is one row that has a bitmask."""

from typing import Any

import numba
import numpy as np
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32
from pagedrun.kernels.cpu.jit import kernel, part, spread

_WORD = 32  # tokens


def mask_logits(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
    """Write -inf where a row's bitmask does not allow a token; see the reference."""
    spread(len(rows) * logits.shape[1])
    _mask_logits(as_array(logits), as_array(rows), as_array(bitmask.contiguous()))


@kernel
def _mask_logits(logits: Any, rows: Any, bitmask: Any) -> None:
    for r in numba.prange(rows.shape[0]):
        _mask_row(logits[rows[r]], bitmask[r])


@part()
def _mask_row(logits: Any, words: Any) -> None:
    forbidden = from_float32(np.float32(-np.inf), logits)
    for w in range(words.shape[0]):
        if words[w] != -1:  # of free text most words are whole
            start, end = w * _WORD, min((w + 1) * _WORD, logits.shape[0])
            _mask_word(logits[start:end], words[w], forbidden)


@part()
def _mask_word(logits: Any, word: Any, forbidden: Any) -> None:
    if word == 0:
        logits[:] = forbidden
        return
    for i in range(logits.shape[0]):
        logits[i] = logits[i] if (word >> i) & 1 else forbidden
