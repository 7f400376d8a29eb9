"""Codes of few bits, taken out of 32-bit words."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, part, spread

# Orders of eight nibbles in a word: as they are, and AWQ's.
_PLAIN = (0, 1, 2, 3, 4, 5, 6, 7)
_INTERLEAVED = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_codes(words: Tensor, num_bits: int, order: tuple[int, ...]) -> Tensor:
    """Return the codes in `words` as signed numbers; see the reference."""
    num_rows, num_words = words.shape
    codes = torch.empty(num_rows, num_words * len(order), dtype=torch.int8)
    spread(codes.numel())
    given = as_array(words.contiguous())
    if num_bits == 4 and order in (_PLAIN, _INTERLEAVED):
        _unpack_nibbles(given, order == _INTERLEAVED, as_array(codes.view(torch.int64)))
    else:
        _unpack_codes(given, num_bits, np.array(order, np.int64), as_array(codes))
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


@kernel
def _unpack_nibbles(words: Any, is_interleaved: bool, codes: Any) -> None:
    """Write a word's eight codes as one number, a byte each: vector code, as nothing is scattered.

    codes: [num_rows, num_words] int64.
    """
    for row in numba.prange(words.shape[0]):
        of_row, out = words[row], codes[row]
        if is_interleaved:
            for column in range(of_row.shape[0]):
                word = np.uint64(np.uint32(of_row[column]))
                low, high = word & np.uint64(0xFFFF), word >> np.uint64(16)
                out[column] = _signed(_in_words(low) | (_in_words(high) << np.uint64(8)))
        else:
            for column in range(of_row.shape[0]):
                word = np.uint64(np.uint32(of_row[column]))
                word = (word | (word << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
                word = (word | (word << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
                word = (word | (word << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
                out[column] = _signed(word)


@part()
def _in_words(nibbles: Any) -> Any:
    """Return four nibbles in words of 16 bits each."""
    apart = (nibbles | (nibbles << np.uint64(24))) & np.uint64(0x000000FF000000FF)
    return (apart | (apart << np.uint64(12))) & np.uint64(0x000F000F000F000F)


@part()
def _signed(nibbles: Any) -> Any:
    """Return nibbles in bytes, each less 8; the upper bit keeps a byte from taking of the next."""
    upper = np.uint64(0x8080808080808080)
    return np.int64(((nibbles | upper) - np.uint64(0x0808080808080808)) ^ upper)
