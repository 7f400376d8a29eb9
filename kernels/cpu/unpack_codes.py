"""Codes of few bits, taken out of 32-bit words."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, spread


def unpack_codes(words: Tensor, num_bits: int, order: tuple[int, ...]) -> Tensor:
    """Return the codes in `words` as signed numbers; see the reference."""
    num_rows, num_words = words.shape
    codes = torch.empty(num_rows, num_words * len(order), dtype=torch.int8)
    spread(codes.numel())
    _unpack_codes(
        as_array(words.contiguous()), num_bits, np.array(order, np.int64), as_array(codes)
    )
    return codes


@kernel
def _unpack_codes(words: Any, num_bits: int, order: Any, codes: Any) -> None:
    mask, half = (1 << num_bits) - 1, 1 << (num_bits - 1)
    num_codes = order.shape[0]
    for row in numba.prange(words.shape[0]):
        for column in range(words.shape[1]):
            word = np.int64(words[row, column])
            of_word = codes[row, column * num_codes : (column + 1) * num_codes]
            for i in range(num_codes):
                of_word[order[i]] = np.int8(((word >> (i * num_bits)) & mask) - half)
