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
    """Every expert's matrices, of the same shape in each of the three.

    gate, up: [intermediate_size, hidden_size]. down: [hidden_size, intermediate_size].
    """

    gate: "Sequence[Tensor]"
    up: "Sequence[Tensor]"
    down: "Sequence[Tensor]"


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
    """`num_experts` gated networks without biases: `down(activation(gate) * up)`.

    `name` is what their tensors' names begin with. Checkpoints hold them in one of `layouts`; the
    first is meant where there is no checkpoint.
    """

    name: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    layouts: tuple[ExpertLayout, ...]

    def stored_as(self, is_stored: Callable[[str], bool]) -> "ExpertsSpec":
        """Return them in the one layout of which a tensor `is_stored`, the first if none."""
        for layout in self.layouts:
            if any(is_stored(each.name) for each in layout.parameters(self)):
                return replace(self, layouts=(layout,))
        return self

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the tensors of all experts."""
        return self.layouts[0].parameters(self)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all experts, in a model whose numbers have `dtype_bytes`."""
        return dtype_bytes * sum(each.num_values for each in self.parameters())

    def load(self, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices of all experts."""
        return self.layouts[0].load(self, source)
