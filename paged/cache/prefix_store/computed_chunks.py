"""ComputedChunks: what the prefix store looks at of a step."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ComputedChunks(Protocol):
    """Chunks of rows' tokens, [num_chunks] int64 each; `StepInput` is one."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """The index of each chunk's request."""
        ...

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first token of each."""
        ...

    @property
    def ends(self) -> NDArray[np.int64]:
        """The token behind the last."""
        ...

    @property
    def block_tables(self) -> Sequence[NDArray[np.int32]]:
        """The row's blocks in each group of layers, [num_chunks, width]."""
        ...

    @property
    def write_slots(self) -> NDArray[np.int64]:
        """Where each leaves its state, if there are recurrent layers."""
        ...
