"""StackedApart: one tensor for the gates of all experts, one for their ups, one for their downs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.experts.stack import Stack
from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertMatrices, ExpertsSpec

if TYPE_CHECKING:  # it imports torch
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class StackedApart:
    """`{experts}.gate_proj` and `up_proj` [num_experts, intermediate_size, hidden_size], and
    `{experts}.down_proj` [num_experts, hidden_size, intermediate_size]: as GGUF files have them.
    """

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return the tensors of the three."""
        return tuple(each for stack in self._stacks(experts) for each in stack.parameters(stored))

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the three."""
        return sum(each.held_bytes(dtype_bytes, codes) for each in self._stacks(experts))

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, as views where they are plain."""
        gate, up, down = (stack.matrices(source) for stack in self._stacks(experts))
        return ExpertMatrices(gate, up, down)

    def _stacks(self, experts: ExpertsSpec) -> tuple[Stack, Stack, Stack]:
        hidden, inner = experts.hidden_size, experts.intermediate_size

        def stack(projection: str, *sizes: int) -> Stack:
            linear = experts.linear(f"{experts.name}.{projection}", *sizes)
            return Stack(linear, experts.num_experts)

        return (
            stack("gate_proj", inner, hidden),
            stack("up_proj", inner, hidden),
            stack("down_proj", hidden, inner),
        )
