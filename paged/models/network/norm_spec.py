"""NormSpec: an RMSNorm, as a value."""

from dataclasses import dataclass

from pagedrun.paged.models.network.parameter import Parameter, Role


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Divides `size` numbers by their root mean square (`eps` added), times a weight."""

    name: str
    size: int
    eps: float

    @property
    def weight(self) -> Parameter:
        """The weight, [size]."""
        return Parameter(f"{self.name}.weight", (self.size,), Role.NORM)

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the weight."""
        return (self.weight,)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the weight."""
        return self.size * dtype_bytes
