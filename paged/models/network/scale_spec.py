"""ScaleSpec: numbers that multiply what they are of, as a value."""

from dataclasses import dataclass

from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors


@dataclass(frozen=True, slots=True)
class ScaleSpec:
    """`size` factors, by the name of their tensor."""

    name: str
    size: int = 1

    @property
    def weight(self) -> Parameter:
        """The factors, [size]."""
        return Parameter(self.name, (self.size,), Role.SCALE)

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the factors."""
        return (self.weight,)

    @property
    def num_weights(self) -> int:
        """How many factors there are."""
        return self.weight.num_values

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return their bytes: they are held in float32, whatever the model's dtype."""
        return 4 * self.size
