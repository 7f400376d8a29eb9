"""Separate: a tensor for each expert and projection."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.network.experts_spec import ExpertMatrices, ExpertsSpec
from pagedrun.paged.models.network.parameter import Parameter, Role

if TYPE_CHECKING:  # it imports torch
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Separate:
    """`{experts}.{number}.{projection}.weight`; the fields are the projections' names."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    def parameters(self, experts: ExpertsSpec) -> tuple[Parameter, ...]:
        """Return three matrices for each expert."""
        projections = (self.gate, self.up, self.down)
        return tuple(each for name in projections for each in self._matrices(experts, name))

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices as they are."""
        gate, up, down = (
            [source.kept(each) for each in self._matrices(experts, name)]
            for name in (self.gate, self.up, self.down)
        )
        return ExpertMatrices(gate, up, down)

    def _matrices(self, experts: ExpertsSpec, projection: str) -> list[Parameter]:
        shape = (experts.intermediate_size, experts.hidden_size)
        if projection == self.down:
            shape = (experts.hidden_size, experts.intermediate_size)
        return [
            Parameter(f"{experts.name}.{number}.{projection}.weight", shape, Role.MATRIX)
            for number in range(experts.num_experts)
        ]
