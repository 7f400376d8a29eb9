"""Interleaved: all experts in two tensors that lie transposed, with biases."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.experts.paired_rows import biases, taken_apart
from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertMatrices, ExpertsSpec

if TYPE_CHECKING:  # it imports torch
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Interleaved:
    """`{experts}.gate_up_proj` [num_experts, hidden_size, 2 * intermediate_size], each gate before
    its up, and `{experts}.down_proj` [num_experts, intermediate_size, hidden_size].

    Biases are those of `paired_rows`.
    """

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return the two tensors and their biases."""
        return *self._matrices(experts), *biases(experts)

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the plain matrices."""
        return experts.num_bytes(dtype_bytes)

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, turned."""
        gate_up, down = (source.tensor(each).mT for each in self._matrices(experts))
        return taken_apart(experts, source, list(gate_up), list(down))

    def _matrices(self, experts: ExpertsSpec) -> tuple[Parameter, Parameter]:
        number, hidden = experts.num_experts, experts.hidden_size
        inner = experts.intermediate_size
        return (
            Parameter(f"{experts.name}.gate_up_proj", (number, hidden, 2 * inner), Role.MATRIX),
            Parameter(f"{experts.name}.down_proj", (number, inner, hidden), Role.MATRIX),
        )
