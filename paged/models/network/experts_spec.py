"""ExpertsSpec: the networks of a mixture, as a value; ExpertLayout: how a checkpoint holds them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pagedrun.paged.models.network.parameter import Parameter
from pagedrun.paged.models.network.stored_tensors import NOTHING_STORED, StoredTensors

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """Every expert's matrices, of the same shape in each of the three, and biases if any.

    gate, up: [intermediate_size, hidden_size]. down: [hidden_size, intermediate_size].
    gate_up_bias: [num_experts, 2 * intermediate_size], gates first. down_bias: [num_experts,
    hidden_size].
    """

    gate: "Sequence[Tensor]"
    up: "Sequence[Tensor]"
    down: "Sequence[Tensor]"
    gate_up_bias: "Tensor | None" = None
    down_bias: "Tensor | None" = None


class ExpertLayout(Protocol):
    """One way of holding experts in a checkpoint. A value, as a `LinearMethod` is."""

    def parameters(self, experts: "ExpertsSpec") -> tuple[Parameter, ...]:
        """Return the tensors that the checkpoint has for them."""
        ...

    def load(self, experts: "ExpertsSpec", source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, as views of the checkpoint's tensors where it has them so."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """`num_experts` gated networks: `down(activation(gate) * up)`, or with biases in both products.

    `name` is what their tensors' names begin with. Checkpoints hold them in one of `layouts`; the
    first is meant where there is no checkpoint.
    """

    name: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    layouts: tuple[ExpertLayout, ...]
    has_bias: bool = False

    def stored_as(self, is_stored: Callable[[str], bool]) -> "ExpertsSpec":
        """Return them in the layout of which most `is_stored`, the first if none."""

        def share(layout: ExpertLayout) -> float:
            names = [each.name for each in layout.parameters(self)]
            return sum(map(is_stored, names)) / len(names)

        return replace(self, layouts=(max(self.layouts, key=share),))

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the tensors of all experts."""
        return self.layouts[0].parameters(self)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all experts, in a model whose numbers have `dtype_bytes`."""
        biases = 2 * self.intermediate_size + self.hidden_size if self.has_bias else 0
        weights = 3 * self.intermediate_size * self.hidden_size
        return dtype_bytes * self.num_experts * (weights + biases)

    def load(self, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices of all experts."""
        return self.layouts[0].load(self, source)
