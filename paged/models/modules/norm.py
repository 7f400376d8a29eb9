"""RMS norms and layer norms: descriptions."""

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
    """Description of an RMS norm: x / sqrt(mean(x^2) + eps) * (offset + weight).

    A weight with an offset is held in float32, since the sum has more digits.
    """

    name: str
    size: int
    eps: float
    offset: float = 0.0

    @property
    def weight(self) -> Parameter:
        """Weight, [size]."""
        return Parameter(
            f"{self.name}.weight", (self.size,), Role.NORM, in_float32=bool(self.offset)
        )

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the weight."""
        return (self.weight,)


@dataclass(frozen=True, slots=True)
class LayerNormSpec(Part):
    """Description of a layer norm: (x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""

    name: str
    size: int
    eps: float
    has_bias: bool = True

    @property
    def weight(self) -> Parameter:
        """Weight, [size]."""
        return Parameter(f"{self.name}.weight", (self.size,), Role.NORM)

    @property
    def bias(self) -> Parameter | None:
        """Bias, [size], None without one."""
        if not self.has_bias:
            return None
        return Parameter(f"{self.name}.bias", (self.size,), Role.BIAS)

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return weight and bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


AnyNormSpec = NormSpec | LayerNormSpec


@dataclass(frozen=True, slots=True)
class NormForm:
    """Epsilon and weight offset of all norms of a model."""

    eps: float
    offset: float = 0.0

    @classmethod
    def from_json(cls, config: JsonObject, eps: float = 1e-6, offset: float = 0.0) -> "NormForm":
        """Read `rms_norm_eps`, with the default `eps`."""
        return cls(config.number("rms_norm_eps", 0.0, 1.0, eps), offset)

    def named(self, name: str, size: int) -> NormSpec:
        """Return a norm of `size` numbers with the tensor `name`.weight."""
        return NormSpec(name, size, self.eps, self.offset)
