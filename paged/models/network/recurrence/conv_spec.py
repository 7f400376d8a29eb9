"""ConvSpec: a depthwise convolution over a sequence's tokens, as a value."""

from dataclasses import dataclass

from pagedrun.paged.cache.cache_spec import StateArray
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """Each of `num_channels` channels sees its newest input and the `size` - 1 before that."""

    name: str
    num_channels: int
    size: int
    has_bias: bool = False

    @property
    def weight(self) -> Parameter:
        """The weights, [num_channels, 1, size]."""
        return Parameter(f"{self.name}.weight", (self.num_channels, 1, self.size), Role.MATRIX)

    @property
    def bias(self) -> Parameter | None:
        """What is added, [num_channels]."""
        if not self.has_bias:
            return None
        return Parameter(f"{self.name}.bias", (self.num_channels,), Role.BIAS)

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return weight and bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def num_weights(self) -> int:
        """How many numbers there are."""
        return sum(each.num_values for each in self.parameters())

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of both."""
        return dtype_bytes * sum(each.num_values for each in self.parameters())

    def state(self, dtype: str) -> StateArray:
        """Return what it keeps of a sequence: the inputs before the next, oldest first."""
        return StateArray("conv", (self.size - 1, self.num_channels), dtype)
