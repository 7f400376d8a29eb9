"""DeltaNetSpec: a Gated DeltaNet, as a value."""

from dataclasses import dataclass

from pagedrun.paged.cache.cache_spec import StateArray, StateSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.network.part import Part
from pagedrun.paged.models.network.recurrence.conv_spec import ConvSpec
from pagedrun.paged.models.network.recurrence.decay_spec import DecaySpec


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """`num_heads` value heads of `value_dim`; `num_key_heads` of `key_dim` are shared among them.

    `inputs` gives queries, keys and values, which pass `conv`, then a gate for each value, and two
    numbers for each value head. `norm` is of value_dim; `out` maps the heads' results back.
    """

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    inputs: LinearSpec
    conv: ConvSpec
    decay: DecaySpec
    norm: NormSpec
    out: LinearSpec

    @property
    def num_values(self) -> int:
        """Numbers of a token's values, and of its gates."""
        return self.num_heads * self.value_dim

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        return self.inputs, self.conv, self.decay, self.norm, self.out

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point: inputs, what passed, and the results."""
        return self.inputs.out_features + 2 * self.conv.num_channels + 2 * self.num_values

    def state_spec(self, dtype: str) -> StateSpec:
        """Return what it keeps of each sequence: a matrix a head, in float32 always."""
        matrices = StateArray("delta", (self.num_heads, self.key_dim, self.value_dim), "float32")
        return StateSpec((self.conv.state(dtype), matrices))
