"""Dense: linear layers as plain matrices."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.linear import Linear
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Dense:
    """A matrix [out_features, in_features] for each part, and a bias [out_features] if any.

    The parts are stacked into one matrix, which the backend packs.
    """

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return each part's matrix, and its bias."""
        return *self.weights(linear), *self.biases(linear)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        """Return the bytes of matrices and biases in the model's dtype."""
        return dtype_bytes * sum(each.num_values for each in self.parameters(linear))

    def load(self, linear: LinearSpec, source: "WeightSource") -> "Linear":
        """Return the parts as one product of the backend's."""
        weight = source.stacked(self.weights(linear))
        bias = source.stacked(self.biases(linear)) if linear.has_bias else None
        return source.pack(weight, bias)

    def matrix(self, linear: LinearSpec, source: "WeightSource") -> "Tensor":
        """Return a layer's only matrix, which stays in its file where it can."""
        [matrix] = self.weights(linear)
        return source.kept(matrix)

    def weights(self, linear: LinearSpec) -> list[Parameter]:
        """Return each part's matrix."""

        def matrix(part: Projection) -> Parameter:
            shape = (part.out_features, linear.in_features)
            return Parameter(f"{part.name}.weight", shape, Role.MATRIX, part.order)

        return [matrix(part) for part in linear.parts]

    def biases(self, linear: LinearSpec) -> list[Parameter]:
        """Return each part's bias, nothing for a layer without."""
        if not linear.has_bias:
            return []
        return [
            Parameter(f"{part.name}.bias", (part.out_features,), Role.BIAS, part.order)
            for part in linear.parts
        ]
