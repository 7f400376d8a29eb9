"""RMS norms and learned scales: descriptions."""

from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    Parameter,
    Part,
    Role,
    StoredTensors,
)


@dataclass(frozen=True, slots=True)
class NormSpec(Part):
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
        return Parameter(
            f"{self.name}.weight", (self.size,), Role.NORM, in_float32=bool(self.offset)
        )

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the weight."""
        return (self.weight,)


@dataclass(frozen=True, slots=True)
class NormForm:
    """Each adds `eps` to the mean of squares, and multiplies by `offset` plus its weight."""

    eps: float
    offset: float = 0.0

    @classmethod
    def from_json(cls, config: JsonObject, eps: float = 1e-6, offset: float = 0.0) -> "NormForm":
        """Read `rms_norm_eps`; `eps` is what a family assumes where config.json is silent."""
        return cls(config.number("rms_norm_eps", 0.0, 1.0, eps), offset)

    def named(self, name: str, size: int) -> NormSpec:
        """Return a norm of `size` numbers whose weight is called `name`."""
        return NormSpec(name, size, self.eps, self.offset)
