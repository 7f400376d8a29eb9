"""Separate: tensors for each expert and projection."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertMatrices, ExpertsSpec

if TYPE_CHECKING:  # it imports torch
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Separate:
    """`{experts}.{number}.{projection}`, linear layers; the fields are the projections' names."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return the tensors of three matrices for each expert."""
        linears = (
            linear
            for name in (self.gate, self.up, self.down)
            for linear in self._linears(experts, name)
        )
        return tuple(each for linear in linears for each in linear.parameters(stored))

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the matrices."""
        return sum(
            linear.matrix_bytes(dtype_bytes, codes)
            for name in (self.gate, self.up, self.down)
            for linear in self._linears(experts, name)
        )

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, as they are where they are plain."""
        gate, up, down = (
            [linear.matrix(source) for linear in self._linears(experts, name)]
            for name in (self.gate, self.up, self.down)
        )
        return ExpertMatrices(gate, up, down)

    def _linears(self, experts: ExpertsSpec, projection: str) -> list[LinearSpec]:
        sizes = experts.intermediate_size, experts.hidden_size
        if projection == self.down:
            sizes = experts.hidden_size, experts.intermediate_size
        return [
            experts.linear(f"{experts.name}.{number}.{projection}", *sizes)
            for number in range(experts.num_experts)
        ]
