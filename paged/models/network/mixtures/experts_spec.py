"""ExpertsSpec: the networks of a mixture, as a value; ExpertLayout: how a checkpoint holds them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearMethod, LinearSpec, Projection

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """Every expert's matrices, of the same shape in each of the three, and biases if any.

    They are in few bits where a backend holds experts so.

    gate, up: [intermediate_size, hidden_size]. down: [hidden_size, intermediate_size].
    gate_up_bias: [num_experts, 2 * intermediate_size], gates first. down_bias: [num_experts,
    hidden_size].
    """

    gate: "Sequence[PackedWeight | Tensor]"
    up: "Sequence[PackedWeight | Tensor]"
    down: "Sequence[PackedWeight | Tensor]"
    gate_up_bias: "Tensor | None" = None
    down_bias: "Tensor | None" = None


class ExpertLayout(Protocol):
    """One way of holding experts in a checkpoint. A value, as a `LinearMethod` is."""

    def parameters(
        self, experts: "ExpertsSpec", stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return the tensors that a checkpoint with the tensors `stored` has for them."""
        ...

    def held_bytes(self, experts: "ExpertsSpec", dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the matrices and biases; `codes` says which stay in few bits."""
        ...

    def load(self, experts: "ExpertsSpec", source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, as views of the checkpoint's tensors where it has them so."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """`num_experts` gated networks: `down(activation(gate) * up)`, or with biases in both products.

    `name` is what their tensors' names begin with. Checkpoints hold them in one of `layouts`; the
    first is meant where there is no checkpoint. `method` is how a matrix is held.
    """

    name: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    layouts: tuple[ExpertLayout, ...]
    method: LinearMethod
    has_bias: bool = False

    def stored_as(self, stored: StoredTensors) -> "ExpertsSpec":
        """Return them in the layout of which most is `stored`, the first if nothing is."""

        def share(layout: ExpertLayout) -> float:
            found = [stored.get(each.name) for each in layout.parameters(self, stored)]
            return sum(each is not None for each in found) / len(found)

        return replace(self, layouts=(max(self.layouts, key=share),))

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the tensors of all experts."""
        return self.layouts[0].parameters(self, stored)

    def linear(self, name: str, out_features: int, in_features: int) -> LinearSpec:
        """Return a product of one expert, without a bias."""
        return LinearSpec((Projection(name, out_features),), in_features, False, self.method)

    @property
    def num_weights(self) -> int:
        """How many numbers all experts have, however they are held."""
        biases = 2 * self.intermediate_size + self.hidden_size if self.has_bias else 0
        weights = 3 * self.intermediate_size * self.hidden_size
        return self.num_experts * (weights + biases)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all experts, in a model whose numbers have `dtype_bytes`."""
        return dtype_bytes * self.num_weights

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of all experts where few bits among the `codes` stay few."""
        return self.layouts[0].held_bytes(self, dtype_bytes, codes.of_experts)

    def load(self, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices of all experts."""
        return self.layouts[0].load(self, source)
