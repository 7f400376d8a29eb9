"""DecaySpec: how fast the heads of a recurrence forget, as a value."""

from dataclasses import dataclass

from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors


@dataclass(frozen=True, slots=True)
class DecaySpec:
    """A rate for each of `num_heads` heads, and what is added to its step; held in float32."""

    name: str
    num_heads: int

    @property
    def a_log(self) -> Parameter:
        """Logarithms of the rates, [num_heads]."""
        return Parameter(f"{self.name}.A_log", (self.num_heads,), Role.BIAS)

    @property
    def dt_bias(self) -> Parameter:
        """What is added, [num_heads]."""
        return Parameter(f"{self.name}.dt_bias", (self.num_heads,), Role.BIAS)

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return both."""
        return self.a_log, self.dt_bias

    @property
    def num_weights(self) -> int:
        """How many numbers there are."""
        return self.a_log.num_values + self.dt_bias.num_values

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of both."""
        return 2 * 4 * self.num_heads
