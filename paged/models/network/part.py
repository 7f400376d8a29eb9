"""Part: a piece of a network that has parameters of its own."""

from typing import Protocol

from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors


class Part(Protocol):
    """Declares its parameters once; checks, byte counts and random weights follow from that."""

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the tensors that it reads of a checkpoint, whose header says what is stored."""
        ...

    @property
    def num_weights(self) -> int:
        """How many numbers it consists of, however they are held."""
        ...

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of its weights, in a model whose numbers have `dtype_bytes`."""
        ...
