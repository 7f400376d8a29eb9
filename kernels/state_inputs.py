"""StateInputs: which tokens of a step pass a recurrence together, and from which states."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateInputs:
    """Chunks of consecutive tokens, each of one sequence, and where its state is read and written.

    tokens: [num_tokens] int32, the batch's tokens chunk by chunk in each sequence's order: the
    batch itself holds all prompt tokens before all generated ones, and a chunk may have both.
    chunk_starts: [num_chunks + 1] int32, offsets into `tokens`. read_slots: [num_chunks] int32, the
    state that a chunk goes on from, -1 for zeros. write_slots: [num_chunks] int32, where the state
    behind its last token goes, -1 for nowhere; it may be the slot that was read, but none that
    another chunk reads or writes.
    """

    tokens: Tensor
    chunk_starts: Tensor
    read_slots: Tensor
    write_slots: Tensor

    def chunks(self) -> tuple[Tensor, ...]:
        """Return the tokens of each chunk, in their order."""
        starts = self.chunk_starts.tolist()
        return torch.split(self.tokens.long(), [b - a for a, b in pairwise(starts)])

    def placed(self, place: Callable[[Tensor], Tensor]) -> "StateInputs":
        """Return the same on a device, as `place` puts tensors there."""
        return StateInputs(
            place(self.tokens),
            place(self.chunk_starts),
            place(self.read_slots),
            place(self.write_slots),
        )
