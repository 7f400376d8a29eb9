"""Part: a piece of a network that has parameters of its own."""

from typing import Protocol

from pagedrun.paged.models.network.parameter import Parameter


class Part(Protocol):
    """Declares its parameters once; checks, byte counts and random weights follow from that."""

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the tensors that it reads."""
        ...

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of its weights, in a model whose numbers have `dtype_bytes`."""
        ...
