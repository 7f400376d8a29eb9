"""Rows of inputs, sixteen side by side, as tiles take them."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.jit import kernel, spread
from pagedrun.kernels.cpu.simd.aligned import aligned_empty
from pagedrun.kernels.cpu.simd.words import transpose_words

ROWS = 16
STEP = 32
FEW_ROWS = 4


def input_blocks(x: NDArray[np.uint16], num_steps: int) -> NDArray[np.uint32]:
    """Return x [num_rows, in_features], bits of bfloat16, as words of two neighbours.

    Returns [num_blocks, num_steps, 16, width]: for each pair of inputs, sixteen rows, or as few as
    there are, which then take less of the cache. Zeros follow the last row and the last input.
    """
    if len(x) <= FEW_ROWS:
        few = aligned_empty((1, num_steps, ROWS, len(x)), np.uint32)
        spread(0)
        _pack_few(x, few.reshape(-1, len(x)))
        return few
    blocks = aligned_empty((-(-len(x) // ROWS), num_steps, ROWS, ROWS), np.uint32)
    spread(blocks.size)
    _pack(x, blocks)
    return blocks


@kernel
def _pack_few(x: Any, words: Any) -> None:
    for pair in numba.prange(words.shape[0]):
        for row in range(words.shape[1]):
            low, high = np.uint32(0), np.uint32(0)
            if 2 * pair < x.shape[1]:
                low = np.uint32(x[row, 2 * pair])
            if 2 * pair + 1 < x.shape[1]:
                high = np.uint32(x[row, 2 * pair + 1])
            words[pair, row] = np.uint32(low | np.uint32(high << np.uint32(16)))


@kernel
def _pack(x: Any, blocks: Any) -> None:
    num_steps = blocks.shape[1]
    for block in numba.prange(blocks.shape[0]):
        rows = np.zeros(ROWS * num_steps * STEP, np.uint16)
        for i in range(min(ROWS, x.shape[0] - block * ROWS)):
            start = i * num_steps * STEP
            source, target = x[block * ROWS + i], rows[start : start + x.shape[1]]
            for k in range(source.shape[0]):
                target[k] = source[k]
        words = rows.view(np.uint32)
        for step in range(num_steps):
            place = (block * num_steps + step) * ROWS * ROWS
            transpose_words(words, step * ROWS, num_steps * ROWS, blocks, place, ROWS)
