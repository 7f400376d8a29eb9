"""Stacked: one tensor for the gates and ups of all experts, one for their downs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.network.experts_spec import ExpertMatrices, ExpertsSpec
from pagedrun.paged.models.network.parameter import Parameter, Role

if TYPE_CHECKING:  # it imports torch
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Stacked:
    """`{experts}.{gate_up}` [num_experts, 2 * intermediate_size, hidden_size], gates first, and
    `{experts}.{down}` [num_experts, hidden_size, intermediate_size].
    """

    gate_up: str = "gate_up_proj"
    down: str = "down_proj"

    def parameters(self, experts: ExpertsSpec) -> tuple[Parameter, ...]:
        """Return the two tensors."""
        number, hidden = experts.num_experts, experts.hidden_size
        inner = experts.intermediate_size
        return (
            Parameter(f"{experts.name}.{self.gate_up}", (number, 2 * inner, hidden), Role.MATRIX),
            Parameter(f"{experts.name}.{self.down}", (number, hidden, inner), Role.MATRIX),
        )

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return views of the two tensors."""
        gate_up, down = (source.kept(each) for each in self.parameters(experts))
        inner = experts.intermediate_size
        return ExpertMatrices(
            [each[:inner] for each in gate_up], [each[inner:] for each in gate_up], list(down)
        )
