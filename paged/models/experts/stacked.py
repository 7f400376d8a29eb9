"""Stacked: one tensor for the gates and ups of all experts, one for their downs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.experts.some_rows import rows_between
from pagedrun.paged.models.experts.stack import Stack
from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertMatrices, ExpertsSpec

if TYPE_CHECKING:  # it imports torch
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Stacked:
    """`{experts}.{gate_up}` [num_experts, 2 * intermediate_size, hidden_size], gates first, and
    `{experts}.{down}` [num_experts, hidden_size, intermediate_size], if they are plain.
    """

    gate_up: str = "gate_up_proj"
    down: str = "down_proj"

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return the tensors of the two."""
        return tuple(each for stack in self._stacks(experts) for each in stack.parameters(stored))

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the two."""
        return sum(each.held_bytes(dtype_bytes, codes) for each in self._stacks(experts))

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return views of the two tensors, or of what is unpacked of them."""
        gate_up, down = (stack.matrices(source) for stack in self._stacks(experts))
        inner = experts.intermediate_size
        return ExpertMatrices(
            [rows_between(each, 0, inner) for each in gate_up],
            [rows_between(each, inner, 2 * inner) for each in gate_up],
            down,
        )

    def _stacks(self, experts: ExpertsSpec) -> tuple[Stack, Stack]:
        name, hidden, inner = experts.name, experts.hidden_size, experts.intermediate_size
        return (
            Stack(experts.linear(f"{name}.{self.gate_up}", 2 * inner, hidden), experts.num_experts),
            Stack(experts.linear(f"{name}.{self.down}", hidden, inner), experts.num_experts),
        )
