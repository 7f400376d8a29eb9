"""ExpertBlocks: the inputs of experts, sixteen rows side by side, as products take them."""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import kernel, spread
from pagedrun.kernels.cpu.simd.aligned import aligned_empty
from pagedrun.kernels.cpu.simd.words import transpose_words

ROWS = 16  # of a block
STEP = 32  # inputs have zeros up to a multiple of it


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Blocks of rows of one expert each, for the experts that have any.

    Used expert u is `experts[u]`; its blocks are `first_blocks[u] .. first_blocks[u + 1] - 1`, and
    it computes rows `starts[u] .. ends[u] - 1`. The last of its blocks may have lanes without a
    row, which hold zeros.

    inputs: [num_blocks, in_features, 16] float32, or [num_blocks, in_features / 2, 16] words of two
    bfloat16, in_features rounded up to a multiple of 32. The rest: int64.
    """

    experts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    first_blocks: NDArray[np.int64]
    inputs: NDArray[Any]

    @classmethod
    def of(
        cls,
        x: NDArray[Any],
        starts: NDArray[np.int64],
        tokens: NDArray[np.int64] | None,
        *,
        pairs: bool,
    ) -> "ExpertBlocks":
        """Read rows of x, float32 or the bits of bfloat16; see `GroupedLinear`.

        pairs: keep bfloat16 as it is, two in a word; otherwise inputs become float32.
        """
        counts = np.diff(starts)
        experts = np.flatnonzero(counts)
        num_blocks = -(-counts[experts] // ROWS)
        first_blocks = np.concatenate([[0], np.cumsum(num_blocks)])
        width = -(-x.shape[1] // STEP) * STEP
        if pairs:
            inputs = aligned_empty((int(first_blocks[-1]), width // 2, ROWS), np.uint32)
        else:
            inputs = aligned_empty((int(first_blocks[-1]), width, ROWS), np.float32)
        blocks = cls(experts, starts[experts], starts[experts + 1], first_blocks, inputs)
        used = np.repeat(np.arange(len(experts)), num_blocks)
        first_rows = blocks.starts[used] + (np.arange(len(used)) - first_blocks[used]) * ROWS
        tokens = np.arange(starts[-1]) if tokens is None else tokens
        spread(inputs.size)
        pack = _pack_pairs if pairs else _pack_floats
        pack(x, tokens, first_rows, blocks.ends[used], inputs)
        return blocks


@kernel
def _pack_floats(x: Any, tokens: Any, first_rows: Any, ends: Any, inputs: Any) -> None:
    width = inputs.shape[1]
    for block in numba.prange(inputs.shape[0]):
        rows = np.zeros(ROWS * width, np.float32)
        first = first_rows[block]
        for i in range(min(ROWS, ends[block] - first)):
            source, target = x[tokens[first + i]], rows[i * width : (i + 1) * width]
            for k in range(source.shape[0]):
                target[k] = to_float32(source[k])
        for k in range(0, width, ROWS):
            transpose_words(rows, k, width, inputs, (block * width + k) * ROWS, ROWS)


@kernel
def _pack_pairs(x: Any, tokens: Any, first_rows: Any, ends: Any, inputs: Any) -> None:
    width = inputs.shape[1]
    for block in numba.prange(inputs.shape[0]):
        rows = np.zeros(ROWS * 2 * width, np.uint16)
        first = first_rows[block]
        for i in range(min(ROWS, ends[block] - first)):
            source, target = x[tokens[first + i]], rows[i * 2 * width : (i + 1) * 2 * width]
            for k in range(source.shape[0]):
                target[k] = source[k]
        words = rows.view(np.uint32)
        for k in range(0, width, ROWS):
            transpose_words(words, k, width, inputs, (block * width + k) * ROWS, ROWS)
