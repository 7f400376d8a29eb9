"""NormSpec: an RMSNorm, as a value."""

from dataclasses import dataclass

from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Divides `size` numbers by their root mean square (`eps` added), times offset + weight.

    A sum with an offset has more digits than a weight: it is held in float32.
    """

    name: str
    size: int
    eps: float
    offset: float = 0.0

    @property
    def weight(self) -> Parameter:
        """The weight, [size]."""
        return Parameter(f"{self.name}.weight", (self.size,), Role.NORM)

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the weight."""
        return (self.weight,)

    @property
    def num_weights(self) -> int:
        """How many numbers it has."""
        return self.weight.num_values

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the weight."""
        return self.size * (4 if self.offset else dtype_bytes)
