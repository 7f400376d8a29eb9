"""WrittenBlocks: from which offset on the step that is being scheduled writes into which block."""

import numpy as np
from numpy.typing import NDArray


class WrittenBlocks:
    """Two arrays with an entry for each block of the pool; a step is forgotten in O(1)."""

    def __init__(self, num_blocks: int) -> None:
        self._step = 1
        self._steps = np.zeros(num_blocks, dtype=np.int64)  # in which each was last written
        self._offsets = np.zeros(num_blocks, dtype=np.int32)

    def clear(self) -> None:
        """Begin with the next step."""
        self._step += 1

    def note(
        self, block_ids: "NDArray[np.int32] | int", offsets: "NDArray[np.int64] | int"
    ) -> None:
        """Note the first offsets that the step writes in some blocks."""
        self._steps[block_ids] = self._step
        self._offsets[block_ids] = offsets

    def first_offset(self, block_id: int, otherwise: int) -> int:
        """Return the first offset that the step writes in a block; `otherwise` if it does not."""
        if self._steps[block_id] != self._step:
            return otherwise
        return int(self._offsets[block_id])
