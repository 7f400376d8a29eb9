"""MlpSpec: a gated feed-forward layer, as a value."""

from dataclasses import dataclass
from typing import Literal

from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.part import Part

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """`down(activation(gate) * up)`; `gate_up` gives both side by side."""

    activation: Activation
    gate_up: LinearSpec
    down: LinearSpec

    @property
    def intermediate_size(self) -> int:
        """Elements of the gate, and of up."""
        return self.down.in_features

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        return self.gate_up, self.down

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point: gate, up, and their product."""
        return 3 * self.intermediate_size

    def stored_as(self, stored: StoredTensors) -> "MlpSpec":
        """Return itself: there is one way of holding it."""
        return self
