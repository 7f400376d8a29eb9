"""RMS norms and learned scales: descriptions."""

from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import NOTHING_STORED, Parameter, Role, StoredTensors


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
