"""SinksSpec: the sinks of an attention, as a value."""

from dataclasses import dataclass

from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors


@dataclass(frozen=True, slots=True)
class SinksSpec:
    """A learned score for each head, which takes part in its softmax and has no value.

    They are held in float32, as scores are.
    """

    name: str
    num_heads: int

    @property
    def scores(self) -> Parameter:
        """The scores, [num_heads]."""
        return Parameter(self.name, (self.num_heads,), Role.BIAS)

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the scores."""
        return (self.scores,)

    @property
    def num_weights(self) -> int:
        """How many scores there are."""
        return self.scores.num_values

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the scores."""
        return 4 * self.num_heads
