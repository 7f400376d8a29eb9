"""ShortConvSpec: a short convolution between two gates, as a value."""

from dataclasses import dataclass

from pagedrun.paged.cache.cache_spec import StateSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.part import Part
from pagedrun.paged.models.network.recurrence.conv_spec import ConvSpec


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """`inputs` gives b, c and x side by side; `out` maps `c * conv(b * x)` back."""

    inputs: LinearSpec
    conv: ConvSpec
    out: LinearSpec

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        return self.inputs, self.conv, self.out

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point: inputs, what passes, and the result."""
        return self.inputs.out_features + 3 * self.conv.num_channels

    def state_spec(self, dtype: str) -> StateSpec:
        """Return what it keeps of each sequence."""
        return StateSpec((self.conv.state(dtype),))
